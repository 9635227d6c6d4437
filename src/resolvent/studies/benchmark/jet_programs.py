"""Programs that differentiate a network by its input: in one sweep, and as a user of PyTorch would write it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import grad

import resolvent as rv

from .jet_cases import BIHARMONIC, LAPLACIAN, JetCase

multi_index: Any
jet_mv: Any
try:
    from omnibias.core import multi_index  # pyright: ignore
    from omnibias.torch import jet_mv  # pyright: ignore
except ImportError:
    multi_index = jet_mv = None

Step = Callable[[], tuple[Any, Sequence[Any]]]
"""The operator's value at the points, and the gradients of its mean square by all weights."""


def weights_of(net: rv.Network) -> list[Tensor]:
    """(weight, bias) of each block but the first, by block, of which a weight takes the earlier ones concatenated.

    Of a recurrent network, a block's weight takes the block itself at the step before, too.
    """
    machine: Any = net.machine
    W, bias = machine.weight.detach(), machine.bias.detach()
    weights = []
    for to in machine.partition.blocks[1:]:
        if isinstance(machine, rv.RecurrentMachine):
            recurs = to.stop < machine.partition.total
            weight = torch.cat([W[0, to, : to.start], W[1, to, to]], 1) if recurs else W[0, to, : to.start]
        else:
            weight = W[to, : to.start]
        weights += [weight.clone().requires_grad_(), bias[to].clone().requires_grad_()]
    return weights


def plain(net: rv.Network, weights: list[Tensor]) -> Callable[[Tensor], Tensor]:
    """The network as a list of layers and torch.cat."""
    layers = [*zip(weights[::2], weights[1::2], strict=True)]
    if isinstance(net.machine, rv.RecurrentMachine):
        return lambda x: _recurrent(x, layers)
    *hidden, last = layers
    convolutional = isinstance(net.machine, rv.ConvMachine)

    def layer(zs: list[Tensor], weight: Tensor, bias: Tensor) -> Tensor:
        if convolutional:
            return F.conv1d(torch.cat(zs, 1), weight, bias, padding="same")
        return F.linear(torch.cat(zs, 1), weight, bias)

    def run(x: Tensor) -> Tensor:
        zs = [x]
        for weight, bias in hidden:
            zs.append(torch.tanh(layer(zs, weight, bias)))
        return layer(zs, *last)

    return run


def _recurrent(x: Tensor, layers: list[tuple[Tensor, Tensor]]) -> Tensor:
    *hidden, (out_weight, out_bias) = layers
    before = [x.new_zeros(len(x), len(bias)) for _, bias in hidden]
    outputs = []
    for x_t in x.unbind(1):
        zs = [x_t]
        for i, (weight, bias) in enumerate(hidden):
            zs.append(torch.tanh(F.linear(torch.cat([*zs, before[i]], 1), weight, bias)))
        before = zs[1:]
        outputs.append(F.linear(torch.cat(zs, 1), out_weight, out_bias))
    return torch.stack(outputs, 1)


def in_one_sweep(case: JetCase, f: Any, x: Tensor, direction: Tensor) -> Tensor:
    if case.operator in (LAPLACIAN, BIHARMONIC):
        return rv.laplacian(f, x) if case.operator == LAPLACIAN else rv.biharmonic(f, x)
    names, directions = case.operator.names, [direction] if case.operator.along else None
    return case.operator.residual(*rv.derivatives(f, x, case.operator.derivatives, names=names, directions=directions))


def nested(case: JetCase, f: Any, x: Tensor, direction: Tensor) -> Tensor:
    """autograd.grad of autograd.grad; along a direction twice, since J d is the gradient of <J* v, d> by v."""
    x = x.detach().requires_grad_()
    if case.operator.along:
        first = _along(f(x), x, direction)
        return case.operator.residual(first, _along(first, x, direction))
    if case.operator in (LAPLACIAN, BIHARMONIC):
        value = _laplacian(f(x), x)
        return value if case.operator == LAPLACIAN else _laplacian(value, x)
    gradients: dict[str, Tensor] = {}

    def derivative_of(letters: str) -> Tensor:
        if letters == "1":
            return u
        before = letters[:-1] or "1"
        if before not in gradients:
            gradients[before] = _gradient(derivative_of(before), x)
        i = case.operator.names.index(letters[-1])
        return gradients[before][:, i : i + 1]

    u = f(x)
    return case.operator.residual(*map(derivative_of, case.operator.derivatives.split(", ")))


def _gradient(u: Tensor, x: Tensor) -> Tensor:
    return grad(u.sum(), x, create_graph=True)[0]


def _along(u: Tensor, x: Tensor, direction: Tensor) -> Tensor:
    v = torch.zeros_like(u, requires_grad=True)
    return grad(grad(u, x, v, create_graph=True)[0], v, direction, create_graph=True)[0]


def forward_over_forward(case: JetCase, f: Any, x: Tensor, direction: Tensor) -> Tensor:
    """torch.func.jvp of torch.func.jvp."""

    def derivative(x: Tensor) -> Tensor:
        return torch.func.jvp(f, (x,), (direction,))[1]

    return case.operator.residual(*torch.func.jvp(derivative, (x,), (direction,)))


def _laplacian(u: Tensor, x: Tensor) -> Tensor:
    Du = _gradient(u, x)
    return sum(_gradient(Du[:, i], x)[:, i : i + 1] for i in range(x.shape[1]))  # pyright: ignore


def by_hessian(case: JetCase, f: Any, x: Tensor, direction: Tensor) -> Tensor:
    """torch.func.hessian of each sample."""

    def u(x: Tensor) -> Tensor:
        return f(x[None])[0, 0]

    def of_one(x: Tensor) -> Tensor:
        if case.operator == LAPLACIAN:
            return torch.func.hessian(u)(x).trace()
        Du, value = torch.func.grad_and_value(u)(x)
        return case.operator.residual(value, Du[0], Du[1], torch.func.hessian(u)(x)[1, 1])

    return torch.func.vmap(of_one)(x)


def by_omnibias(case: JetCase, weights: list[Tensor], x: Tensor) -> Tensor:
    """Jets of all derivatives up to the order, layer by layer."""
    dimension, order = x.shape[1], case.operator.order
    zs = [torch.func.vmap(lambda x: jet_mv.identity_jet(x, order), out_dims=1)(x)]
    *hidden, last = zip(weights[::2], weights[1::2], strict=True)
    for weight, bias in hidden:
        zs.append(jet_mv.layer_jet_mv(torch.cat(zs, -1), weight, bias, "tanh", dimension, order))
    known = jet_mv.jet_partials(jet_mv.affine_jet_mv(torch.cat(zs, -1), *last), dimension, order)
    if case.operator == LAPLACIAN:
        return sum(known[alpha] for alpha in known if max(alpha) == sum(alpha) == 2)  # pyright: ignore
    if case.operator == BIHARMONIC:
        return known[4, 0] + 2 * known[2, 2] + known[0, 4]
    each = case.operator.derivatives.split(", ")
    return case.operator.residual(*(known[tuple(map(text.count, case.operator.names))] for text in each))


def size_of_numbers(case: JetCase, x: Tensor, direction: Tensor) -> int:
    sizes = []

    def f(x: Any) -> Any:
        sizes.append(x.numbers.size)
        return x

    in_one_sweep(case, f, x[:1], direction[:1])
    return sizes[0]


def _step(value_of: Callable[[], Tensor], weights: list[Tensor]) -> Step:
    def step() -> tuple[Tensor, Sequence[Tensor]]:
        value = value_of()
        gradients = grad((value**2).mean(), weights, allow_unused=True)  # some operators do not see the last bias
        return value.detach(), gradients

    return step


def _step_of_machine(value_of: Callable[[], Tensor], machine: Any) -> Step:
    """The bias of the first block, which no other program has, is not among the gradients."""

    def step() -> tuple[Tensor, Sequence[Tensor]]:
        value, (weight, bias) = both()
        return value, (weight, bias[machine.partition.sizes[0] :])

    both = _step(value_of, [machine.weight, machine.bias])
    return step


def programs(case: JetCase, net: rv.Network, x: Tensor, direction: Tensor) -> Iterator[tuple[str, Step]]:
    """Each PyTorch program's name and its step; `limit` is a pass of the machine over as many tensors as a jet has."""
    weights = weights_of(net)
    f = plain(net, weights)
    yield "machine", _step_of_machine(lambda: in_one_sweep(case, net, x, direction), net.machine)
    yield "nested, machine", _step_of_machine(lambda: nested(case, net, x, direction), net.machine)
    yield "nested, plain", _step(lambda: nested(case, f, x, direction), weights)
    if case.operator.order == 2 and not case.operator.along:
        yield "torch.func.hessian", _step(lambda: by_hessian(case, f, x, direction), weights)
    if case.operator.along:  # a machine refuses: PyTorch would lose derivatives of its Function
        yield "nested jvp, plain", _step(lambda: forward_over_forward(case, f, x, direction), weights)
    if jet_mv is not None and not case.operator.along and x.shape[1] <= 10:  # in 100-D, 5,151 numbers
        yield "omnibias-torch", _step(lambda: by_omnibias(case, weights, x), weights)
    many = torch.randn(size_of_numbers(case, x, direction) * len(x), *x.shape[1:], dtype=x.dtype)
    yield "limit", _step_of_machine(lambda: net(many), net.machine)
