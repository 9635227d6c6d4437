"""What the library asks of PyTorch that PyTorch does not promise, in one place: each with its reason.

Where there is a public replacement, it is named; where there is none, a new PyTorch may need a change here alone.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import (
    _are_functorch_transforms_active,
    _get_fp32_precision_getter,
    _get_tracing_state,
    _is_any_autocast_enabled,
    _len_torch_dispatch_stack,
)
from torch._C._functorch import (
    TransformType,
    get_interpreter_stack,
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
)
from torch._functorch.utils import unwrap_dead_wrappers
from torch.autograd import Function, forward_ad
from torch.compiler import is_compiling as is_compiling
from torch.utils import _pytree

PLAIN = (Tensor, nn.Parameter)
"""Types whose tensors are what they seem."""


def watched() -> bool:
    """Whether operations mean more than they say: something compiles, traces, transforms, casts or records them.

    `torch.is_autocast_enabled(device)` is public, but asks for one device at a time; for the others nothing is.
    """
    return (
        is_compiling()
        or forward_ad._current_level >= 0
        or _are_functorch_transforms_active()
        or _is_any_autocast_enabled()
        or _len_torch_dispatch_stack() > 0
        or _get_tracing_state() is not None
    )


def dispatched() -> bool:
    """Whether a compiler, a mode or a tracer is to see what a sweep consists of. Nothing public asks for all."""
    return is_compiling() or _len_torch_dispatch_stack() > 0 or _get_tracing_state() is not None


def forward_mode() -> bool:
    """Whether a level of forward-mode differentiation is open. `forward_ad` has no public question for it."""
    return forward_ad._current_level >= 0


def functorch() -> bool:
    """Whether `torch.func` transforms what runs. Nothing public says so."""
    return _are_functorch_transforms_active()


def nested_forward_modes() -> int:
    """How many forward modes of `torch.func` are open, one in another. Nothing public says so."""
    return sum(level.key() == TransformType.Jvp for level in get_interpreter_stack() or ())


def autocast_type(x: Any) -> torch.dtype | None:
    """The precision that autocast asks for on the device of x, or None. The first question is for speed alone."""
    if not _is_any_autocast_enabled():
        return None
    device = x.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Where points and weights came in the precision to compute in, as in a backward pass that runs under autocast."""
    if not _is_any_autocast_enabled() or autocast_type(x) is None:
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)


def cast(x: Any) -> Any:
    """x in the precision that autocast asks for; float64, integers and what is no tensor are left alone."""
    dtype = autocast_type(x) if hasattr(x, "__torch_function__") else None
    return x if dtype is None or not x.is_floating_point() or x.dtype.itemsize == 8 else x.to(dtype)


def is_batched_cotangent(x: Any) -> bool:
    """Whether x is one of many cotangents at once (`is_grads_batched`). Nothing public says so."""
    return not is_compiling() and is_legacy_batchedtensor(x)


def as_stored(x: Tensor) -> bool:
    """Whether memory holds the entries of x: it is no promise of zeros, no negative view, no batch of cotangents."""
    return not (is_legacy_batchedtensor(x) or x.is_neg() or x._is_zerotensor())


def apply(function: type[Function]) -> Callable:
    """`function.apply` where no transform is active. Its own binding of arguments takes longer than a small solve."""
    return super(Function, function).apply  # pyright: ignore  # of super outside of a class


def alive(*args: Any) -> tuple:
    """Arguments for `apply`, of which some may be wrappers that `torch.func` left: nothing public unwraps them."""
    for x in () if is_compiling() else args:
        if type(x) is Tensor and is_functorch_wrapped_tensor(x):
            return unwrap_dead_wrappers(args)
    return args


def constant(function: Callable) -> Any:
    """`torch.compiler.assume_constant_result` without importing the compiler, which takes a second."""
    function._dynamo_marked_constant = True  # pyright: ignore  # an attribute of a function
    return function


def not_compiled(function: Callable) -> Any:
    """`torch.compiler.disable` without importing the compiler, which takes a second."""
    return torch._disable_dynamo(function)  # pyright: ignore  # private


@not_compiled
def was_freed(x: Tensor) -> bool:
    """Whether the memory of a plain tensor was given back, so that reading it would end the process.

    `untyped_storage` is public; which tensors have one is not asked for by anything public.
    """
    x = x if is_legacy_batchedtensor(x) else torch.func.debug_unwrap(x)
    plain = type(x) in PLAIN and x.device.type in ("cpu", "cuda")
    return plain and not is_legacy_batchedtensor(x) and not x._is_zerotensor() and x.untyped_storage().nbytes() == 0


def as_tree(cls: type, flatten: Callable, unflatten: Callable) -> None:
    """That transforms and compilers see the tensors in objects of a class. Nothing public says so."""
    _pytree.register_pytree_node(cls, flatten, unflatten)


def each_tensor(function: Callable, x: Any) -> Any:
    """The function of the tensors in x. Nothing public does what transforms do."""
    return _pytree.tree_map(function, x)


def weight_and_bias(module: Any) -> tuple[Any, Any]:
    """Weight, by the name under which it is stored, and bias; a replaced one is asked for.

    To ask nn.Module for both takes as long as a small product.
    """
    parameters, name = module._parameters, module.stored
    if name in parameters and "bias" in parameters:
        return parameters[name], parameters["bias"]
    return getattr(module, name), module.bias


def version(x: Tensor) -> int:
    """How often x was written to in place, by which a function that does is seen. Nothing public counts that."""
    return x._version


def has_hooks(module: nn.Module) -> bool:
    """Whether calling a module does more than its `forward`. Nothing public says so."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def allows_tf32() -> bool:
    """Whether products of float32 may be rounded on GPUs, by either switch; the public ones are read more slowly."""
    return "tf32" in (_get_fp32_precision_getter("cuda", "matmul"), _get_fp32_precision_getter("generic", "all"))


def current_gpu() -> int:
    """`torch.cuda.current_device`, which first makes sure that CUDA is there: kernels ask for each launch."""
    return torch._C._cuda_getDevice()


def current_stream(device: int) -> int:
    """`torch.cuda.current_stream(device).cuda_stream`, without an object for each launch."""
    return torch._C._cuda_getCurrentRawStream(device)


def memory() -> tuple[Any, Any]:
    """PyTorch's shortest way to memory on a CPU, and whether it is to be filled; None where it has none.

    Public replacement: `torch.empty`, which takes as long as a small solve.
    """
    try:
        from torch._C import _get_deterministic_algorithms
        from torch._C._dynamo.guards import _empty_strided_cpu  # pyright: ignore  # it has no stub
    except ImportError:
        return None, None
    return _empty_strided_cpu, _get_deterministic_algorithms
