"""Tensors as a kernel for GPUs reads them, and its launch."""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial, wraps
from math import prod
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from ...pytorch import PLAIN, allows_tf32, as_stored, current_gpu, current_stream, was_freed
from ...structure.operator import CONVOLUTION, Operator
from ...sweep.system import System
from .. import native

POSITIONS = 64  # of a convolution that one program takes; in larger spaces the library's convolutions are as fast


def reads(system: System, dtype: torch.dtype, positions: int) -> bool:
    """Whether the kernels know the operator, and so many positions in this precision."""
    form = system.form
    if form is None or dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    return form.kind != CONVOLUTION or (form.axes == 1 and 0 < positions <= POSITIONS)


def readable(system: System, tensors: tuple, channels: tuple[int, ...]) -> tuple[tuple, tuple[int, ...]] | None:
    """Weight, bias, y0, z0, point, value and inside as a kernel reads them, with the facts of `native.addresses`.

    None if one is a wrapper or does not fit the others; y0 and z0 may have so many channels, from the first on.
    """
    given, operator = tensors[3] if tensors[2] is None else tensors[2], system.operator
    if not (isinstance(given, Tensor) and given.ndim in operator.ndims):
        return None
    if not reads(system, given.dtype, operator.positions(given)):
        return None
    facts = native.addresses(system, tensors)
    if facts is not None:
        return tensors, facts
    copies = _contiguous(operator, tensors, given, channels)
    return None if copies is None else (copies, _addresses(operator, copies))


def outside_of_graphs(function: Any) -> Any:
    """The function, called in a thread of its own: for tensors that are to be kept for later calls.

    Before a CUDA graph is captured, what the capturing thread allocates comes from the graph's pool, and may not stay.
    """

    @wraps(function)
    def call(*arguments: Any) -> Any:
        result: Future = Future()

        def run() -> None:
            try:
                result.set_result(function(*arguments))
            except BaseException as error:
                result.set_exception(error)

        thread = Thread(target=run)  # an executor would refuse once the main thread has ended
        thread.start()
        thread.join()
        return result.result()

    return call


@lru_cache(maxsize=64)
@outside_of_graphs
def places(system: System, device: torch.device) -> Tensor:
    """Where the entries of a packed W stand."""
    return system.places(device)


def whole(system: System, weight: Tensor) -> Tensor:
    """W of its entries: the kernels do not read it packed."""
    shape = system.operator.weight_shape
    W = weight.new_zeros(prod(shape)).index_copy_(0, places(system, weight.device), weight)
    return W.view(shape)


def _contiguous(operator: Operator, tensors: tuple, given: Tensor, channels: tuple[int, ...]) -> tuple | None:
    full = operator.full_shape(given)
    shapes = (operator.weight_shape, (operator.channels,), full, full, full, full, full)
    for i, (x, shape) in enumerate(zip(tensors, shapes, strict=True)):
        if x is not None and not (
            type(x) in PLAIN
            and x.dtype == (torch.bool if i == len(tensors) - 1 else given.dtype)
            and x.device == given.device
            and (_with_all(operator, x, channels) if i in (2, 3) else x.shape) == shape
            and x.layout is torch.strided
            and as_stored(x)
            and not (x.numel() and was_freed(x))
        ):
            return None
    weight, bias, y0, z0, *others = tensors
    z0 = None if z0 is None else operator.extended(z0)
    return tuple(None if x is None else x.contiguous() for x in (weight, bias, y0, z0, *others))


def _with_all(operator: Operator, x: Tensor, channels: tuple[int, ...]) -> torch.Size:
    """The shape of x with all channels, if it may have those that it has."""
    few = x.ndim in operator.ndims and x.shape[operator.channel_axis] in channels
    return operator.full_shape(x) if few else x.shape


def _addresses(operator: Operator, tensors: tuple) -> tuple[int, ...]:
    """What the extension's function of this name gives, where there is none."""
    given = tensors[3] if tensors[2] is None else tensors[2]
    addresses = [0 if x is None else x.data_ptr() for x in tensors]
    samples = given.shape[: given.ndim - operator.event_ndim].numel()
    return samples, given.shape[operator.channel_axis], any(a % 16 for a in addresses), *addresses


def on_gpu_of(x: Tensor) -> AbstractContextManager:
    """Kernels are launched on the GPU that is current."""
    return torch.cuda.device(x.device) if x.is_cuda and x.get_device() != current_gpu() else nullcontext()


def prepare(
    kernel: Any, grid: tuple, tensors: tuple, addresses: tuple | None, tables: tuple, compiled: dict, loads: int
) -> Callable[..., None]:
    """The kernel on these tensors, as a function of its numbers.

    Its own launcher looks at each argument, and for hooks; what it has compiled for aligned tensors needs nothing but
    addresses.
    """
    out = tensors[0]
    if grid in compiled and addresses is not None:
        _, run, function, metadata, table_addresses = compiled[grid]
        head = *(*grid, 1, 1)[:3], current_stream(out.get_device()), function, metadata
        hooks = None, None, None
        return partial(run, *head, *hooks, *addresses, *table_addresses)

    def first(*numbers: Any) -> None:
        given = (out if x is None else x for x in tensors)
        made = kernel[grid](*given, *tables, *numbers, num_warps=4, num_stages=loads)
        if made is not None and addresses is not None:  # it is None where the kernel is interpreted
            table_addresses = tuple(table.data_ptr() for table in tables)
            # `made` keeps the kernel on the GPU
            compiled[grid] = made, made.run, made.function, made.packed_metadata, table_addresses

    return first


def product_precision(dtype: torch.dtype) -> str:
    """Of products, as Triton names it."""
    return "tf32" if dtype == torch.float32 and allows_tf32() else "ieee"


def power_of_2(x: int) -> int:
    """The next one; Triton's own function for it is made for kernels, and slow outside of them."""
    return 1 << (x - 1).bit_length()
