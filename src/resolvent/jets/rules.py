"""What functions of PyTorch make of jets.

W acts on each coefficient alone, and so does all that is linear; a product is one of numbers; what is pointwise is its
series at the value. Each rule is called as (function, *args, **kwargs), and enters the table of `Jet`.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..pytorch import is_compiling
from ..structure import series
from ..structure.activation import ACTIVATIONS
from ..structure.jet import RULES, Jet, common
from ..structure.numbers import Numbers, Terms
from ..structure.series import Series, of_slope, slope_of


def pointwise(known: Series) -> Callable[..., Jet]:
    """Of one whose series is known, for its default arguments."""

    def rule(function: Any, x: Jet, *args: Any, inplace: bool = False, **kwargs: Any) -> Jet:
        if args or kwargs:
            return any_pointwise(function, x, *args, inplace=inplace, **kwargs)
        return _placed(composed(known, x), x, inplace)

    return rule


def any_pointwise(function: Any, x: Jet, *args: Any, inplace: bool = False, **kwargs: Any) -> Jet:
    """Of any other one."""

    def plain(a: Tensor) -> Tensor:
        return function(a, *args, **kwargs)

    if any(arg is True for arg in args):
        raise TypeError(f"{function.__name__} of a jet takes inplace by its name")
    return _placed(composed(of_slope(plain, slope_of(plain)), x), x, inplace)


def _placed(image: Jet, x: Jet, inplace: bool) -> Jet:
    """The image or, in place, x with its coefficients."""
    if inplace:
        x.coefficients, image = image.coefficients, x
    return image


def composed(known: Series, x: Jet) -> Jet:
    if not isinstance(x, Jet):
        raise TypeError("of a pointwise function, a jet is the first argument alone")
    axis, numbers = -1 - x.ndim, x.numbers
    return Jet(numbers.composed(known(x.coefficients[:1], numbers.order), x.coefficients, axis), numbers)


def gelu(function: Any, x: Jet, approximate: str = "none") -> Jet:
    return composed(series.gelu_tanh if approximate == "tanh" else series.gelu, x)


def linear(function: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Of what moves or sums entries: each coefficient alone. Of other jets, as in `x.to(jet)`, the value is enough."""
    args = tuple(other.value if isinstance(other, Jet) else other for other in args)
    return _each(lambda c: function(c, *args, **kwargs), x) if isinstance(x, Jet) else function(x, *args, **kwargs)


def pad(function: Any, x: Jet, pad: Any, mode: str = "constant", value: float | None = None) -> Jet:
    """What is padded with is the value's alone."""
    image = _each(lambda c: function(c, pad, mode), x)
    return image + function(torch.zeros_like(x.value), pad, mode, value) if value else image


def diff(function: Any, x: Jet, n: int = 1, dim: int = -1) -> Jet:
    return _each(lambda c: function(c, n, dim), x)


def joint(function: Any, tensors: Any, dim: int = 0, *, axis: int | None = None) -> Jet:
    """Of a list: tensors in it are constant jets."""
    numbers, ndim = common(*tensors), tensors[0].ndim + (function is torch.stack)
    dim = _axis(dim if axis is None else axis, ndim) - ndim
    return Jet(function([_of(x, numbers) for x in tensors], dim), numbers)


def index(function: Any, x: Jet, at: Any) -> Any:
    at = at if type(at) is tuple else (at,)
    if sum(not (isinstance(i, slice | int) or i is None or i is ...) for i in at) > 1:  # which may move the axes
        return _each(lambda c: c[at], x)
    return Jet(x.coefficients[(slice(None), *at)], x.numbers)


def split(function: Any, x: Jet, sizes: Any, dim: int = 0) -> tuple[Jet, ...]:
    return _in_memory(lambda c, axis: c.split(sizes, axis), x, dim)


def narrow(function: Any, x: Jet, dim: int, start: Any, length: int) -> Jet:
    return _in_memory(lambda c, axis: c.narrow(axis, start, length), x, dim)


def add(function: Any, a: Any, b: Any, *, alpha: Any = 1, sign: int = 1) -> Jet:
    numbers, a, b = _aligned(a, b)
    b = b if alpha * sign == 1 else alpha * sign * b
    return Jet(_of(a, numbers) + _of(b, numbers), numbers)


def times(function: Any, a: Any, b: Any) -> Jet:
    numbers, a, b = _aligned(a, b)
    if isinstance(a, Jet) and isinstance(b, Jet):
        return Jet(numbers.times(a.coefficients, b.coefficients, -1 - a.ndim), numbers)
    a, b = (x.coefficients if isinstance(x, Jet) else x for x in (a, b))
    return Jet(a * b, numbers)


def divided(function: Any, a: Any, b: Any) -> Jet:
    if isinstance(b, Jet):
        return times(function, a, composed(series.reciprocal, b))
    numbers, a, b = _aligned(a, b)
    return Jet(a.coefficients / b, numbers)


def power(function: Any, a: Any, b: Any) -> Jet:
    if isinstance(a, Jet) and not isinstance(b, Jet):
        if isinstance(b, Tensor):
            _, a, b = _aligned(a, b.to(a.dtype))
        return composed(partial(series.power, b), a)
    if isinstance(a, Jet):
        return composed(series.exp, times(function, b, composed(series.log, a)))
    _, a, b = _aligned(a, b)
    return composed(partial(series.exponential, a), b)


def swapped(rule: Callable[..., Any]) -> Callable[..., Any]:
    return lambda function, a, b: rule(function, b, a)


def product(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Of a function that is linear in each of its first two arguments."""
    a, b, *rest = args
    if is_compiling() and function is torch.Tensor.matmul and not isinstance(a, Jet):
        raise TypeError("a tensor @ a jet, or the other way round, is torch.matmul(a, b) in compiled code")
    if not isinstance(b, Jet):
        return _each(lambda a: function(a, b, *rest, **kwargs), a)
    if not isinstance(a, Jet):
        return _each(lambda b: function(a, b, *rest, **kwargs), b)
    numbers = common(a, b)
    terms = _all_products(numbers)
    i, j, k = (torch.tensor(column, device=a.device) for column in terms[:3])
    image = torch.func.vmap(lambda a, b: function(a, b, *rest, **kwargs))(a.coefficients[i], b.coefficients[j])
    c = torch.tensor(terms.c, dtype=image.dtype, device=image.device).reshape(-1, *(1,) * (image.ndim - 1))
    total = torch.zeros(numbers.size, *image.shape[1:], dtype=image.dtype, device=image.device)
    return Jet(total.index_add(0, k, c * image), numbers)


def layer(function: Any, x: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Jet:
    """x ↦ W x + b, of which the bias is real; a batch axis takes the coefficients along."""
    if not isinstance(x, Jet) or isinstance(weight, Jet) or isinstance(bias, Jet):
        raise TypeError(f"{function.__name__} takes a jet for its input alone")
    event_ndim = weight.ndim - 1
    rows, numbers = x.coefficients.movedim(0, -1 - event_ndim), x.numbers
    batch, event = rows.shape[: rows.ndim - event_ndim], rows.shape[rows.ndim - event_ndim :]
    image = function(rows.reshape(prod(batch), *event), weight, None, *args, **kwargs)
    image = image.reshape(*batch, *image.shape[1:])
    if bias is not None:
        image = image + numbers.embedded(bias.reshape(-1, *(1,) * (event_ndim - 1)), -1 - event_ndim)
    return Jet(image.movedim(-1 - event_ndim, 0), numbers)


def bilinear(function: Any, a: Any, b: Any, weight: Any, bias: Any = None) -> Jet:
    image = product(lambda a, b: torch.einsum("...i,oij,...j->...o", a, weight, b), a, b)
    return image if bias is None else image + bias


def where(function: Any, *args: Any) -> Jet:
    """Of a condition that is a tensor, which stands first or, as a method, second."""
    condition, a, b = args if function is torch.where else (args[1], args[0], args[2])
    numbers, a, b = _aligned(a, b, condition.ndim)
    return Jet(torch.where(condition, _of(a, numbers), _of(b, numbers)), numbers)


def dropout(function: Any, x: Jet, p: float = 0.5, training: bool = True, inplace: bool = False) -> Jet:
    return x * function(torch.ones_like(x.value), p, training)


def of_value(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Comparisons, and tensors that are to be like another."""
    return function(*(x.value if isinstance(x, Jet) else x for x in args), **kwargs)


def _each(function: Callable[[Tensor], Any], x: Jet) -> Any:
    """The function of each coefficient."""
    image = torch.func.vmap(function)(x.coefficients)
    if isinstance(image, Tensor) and not image.is_floating_point():
        raise TypeError(f"a jet has no derivatives of {image.dtype}")
    return _jets(image, x.numbers)


def _axis(dim: int, ndim: int) -> int:
    if not -ndim <= dim < ndim:
        raise IndexError(f"dim {dim} is none of the {ndim} axes")
    return dim % ndim


def _in_memory(function: Callable[[Tensor, int], Any], x: Jet, dim: int) -> Any:
    """The function of a part along an axis, with the numbers where they lie, so that cotangents come to lie so, too."""
    c, axis = x.coefficients, _axis(dim, x.ndim)
    place = sum(stride > c.stride(0) for stride in c.stride()[1:])
    parts = function(c.movedim(0, place), axis + (axis >= place))
    return _jets(parts, x.numbers, place)


def _jets(x: Any, numbers: Numbers, place: int = 0) -> Any:
    """Tensors, in tuples or not, with the numbers at some axis, as jets."""
    if isinstance(x, Tensor):
        return Jet(x.movedim(place, 0) if place else x, numbers)
    return tuple(_jets(part, numbers, place) for part in x)


def _of(x: Any, numbers: Any) -> Tensor:
    """The coefficients of a jet or a constant."""
    return x.coefficients if isinstance(x, Jet) else numbers.embedded(x, -1 - x.ndim)


def _aligned(a: Any, b: Any, ndim: int = 0) -> tuple[Numbers, Any, Any]:
    """Two factors or terms, with as many axes as each other, or more, so that they broadcast."""
    numbers = common(a, b)
    like = a if isinstance(a, Jet) else b
    a, b = (
        x if isinstance(x, Jet | Tensor) else torch.as_tensor(x, dtype=like.dtype, device=like.device) for x in (a, b)
    )
    ndim = max(a.ndim, b.ndim, ndim)

    def fill(x: Any) -> Any:
        missing = (1,) * (ndim - x.ndim)
        if not isinstance(x, Jet):
            x = x if x.ndim else x.to(like.dtype)  # as a number, which does not promote
            return x.reshape((*missing, *x.shape))
        return Jet(x.coefficients.reshape(numbers.size, *missing, *x.shape), numbers) if missing else x

    return numbers, fill(a), fill(b)


def _all_products(numbers: Numbers) -> Terms:
    """Those with 1, too."""
    size, (i, j, k, c) = range(numbers.size), numbers.forward
    with_one = [(0, n, n, 1.0) for n in size] + [(n, 0, n, 1.0) for n in size[1:]]
    return Terms(*(tuple(one) + many for one, many in zip(zip(*with_one, strict=True), (i, j, k, c), strict=True)))


def enter(rule: Callable[..., Any], names: str) -> None:
    """In the table, under each name that a function has in PyTorch, and as a method."""
    for name in names.split():
        for room in (torch, torch.Tensor, F, torch.special):
            function = getattr(room, name, None)
            if callable(function):
                RULES[function] = rule
        RULES[name] = rule


enter(
    linear,
    "reshape view flatten unflatten permute transpose t swapaxes movedim squeeze unsqueeze sum mean select "
    "chunk index_select gather take_along_dim unbind tensor_split flip roll expand expand_as broadcast_to repeat "
    "tile repeat_interleave type_as view_as reshape_as contiguous clone cumsum diagonal tril triu trace to double "
    "float half bfloat16 neg __neg__ negative zeros_like avg_pool1d avg_pool2d avg_pool3d",
)
enter(pad, "pad")
enter(diff, "diff")
enter(joint, "cat concat concatenate stack")
enter(index, "__getitem__")
enter(split, "split split_with_sizes")
enter(narrow, "narrow")
enter(add, "add __add__ __radd__")
enter(partial(add, sign=-1), "sub subtract __sub__")
enter(swapped(partial(add, sign=-1)), "rsub __rsub__")
enter(times, "mul multiply __mul__ __rmul__")
enter(divided, "div divide true_divide __truediv__")
enter(swapped(divided), "__rtruediv__")
enter(power, "pow __pow__")
enter(swapped(power), "__rpow__")
enter(product, "matmul __matmul__ mm bmm mv dot outer")
enter(lambda function, a, b: product(torch.matmul, b, a), "__rmatmul__")
enter(layer, "linear conv1d conv2d conv3d")
enter(bilinear, "bilinear")
enter(dropout, "dropout")
enter(where, "where")
enter(
    of_value,
    "__lt__ __le__ __gt__ __ge__ __eq__ __ne__ lt le gt ge eq ne ones_like empty_like rand_like randn_like "
    "new_zeros new_ones new_empty new_full new_tensor",
)
for _name, _series in dict(
    sin=series.sin,
    cos=series.cos,
    exp=series.exp,
    log=series.log,
    sqrt=series.sqrt,
    reciprocal=series.reciprocal,
    rsqrt=partial(series.power, -0.5),
    square=partial(series.power, 2),
).items():
    enter(pointwise(_series), _name)
for _activation in ACTIVATIONS.values():
    enter(pointwise(_activation.series), _activation.name)
enter(gelu, "gelu")
enter(
    any_pointwise,
    "tan sinh cosh asin acos atan arcsin arccos arctan asinh acosh atanh erf erfc exp2 expm1 log1p log2 log10 abs "
    "__abs__ absolute clamp celu hardtanh hardsigmoid hardswish logsigmoid mish relu6 softshrink hardshrink tanhshrink "
    "threshold sinc",
)
