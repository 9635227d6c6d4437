"""Tensors as a kernel for GPUs reads them, and its launch."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial, wraps
from threading import Thread
from typing import Any

import torch
from torch import Tensor
from torch._C import _get_fp32_precision_getter
from torch._C._functorch import is_legacy_batchedtensor

from ...structure.operator import Operator
from ...sweep.plan import Plan
from .. import native as _native


def readable(operator: Operator, plan: Plan, tensors: tuple[Any, ...]) -> tuple[tuple, tuple[int, ...]] | None:
    """Weight, bias, y0, z0, point, value and inside as a kernel reads them, with the facts of `_native.addresses`.

    None if one is a wrapper or does not fit the others.
    """
    facts = _native.addresses(operator, plan, tensors)
    if facts is not None:
        return tensors, facts
    copies = _contiguous(operator, tensors)
    return None if copies is None else (copies, _addresses(operator, copies))


def _contiguous(operator: Operator, tensors: tuple[Any, ...]) -> tuple[Any, ...] | None:
    _, _, y0, z0, *_ = tensors
    given = z0 if y0 is None else y0
    full = operator.full_shape(given)
    if given.shape[operator.channel_axis] > full[operator.channel_axis]:
        return None
    shapes = (operator.weight_shape, full[operator.channel_axis :][:1], given.shape, full, full, full, full)
    for i, (x, shape) in enumerate(zip(tensors, shapes, strict=True)):
        if x is not None and not (
            type(x) in _native.PLAIN
            and x.dtype == (torch.bool if i == len(tensors) - 1 else given.dtype)
            and x.device == given.device
            and x.shape == shape
            and not (is_legacy_batchedtensor(x) or x.is_neg() or x._is_zerotensor())
        ):
            return None
    return tuple(None if x is None else x.contiguous() for x in tensors)


def _addresses(operator: Operator, tensors: tuple[Any, ...]) -> tuple[int, ...]:
    """What the extension's function of this name gives, where there is none."""
    _, _, y0, z0, *_ = tensors
    given, addresses = z0 if y0 is None else y0, [0 if x is None else x.data_ptr() for x in tensors]
    samples = given.shape[: given.ndim - operator.event_ndim].numel()
    return samples, given.shape[operator.channel_axis], any(a % 16 for a in addresses), *addresses


def elsewhere(x: Tensor) -> bool:
    """Whether kernels would now be launched on another GPU."""
    return x.is_cuda and x.get_device() != torch._C._cuda_getDevice()


def kept(function: Any) -> Any:
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


def prepare(
    kernel: Any,
    grid: tuple[int, ...],
    tensors: tuple[Tensor | None, ...],
    addresses: tuple[int, ...] | None,
    tables: tuple[Tensor, ...],
    compiled: dict,
    loads: int,
) -> Callable[..., None]:
    """The kernel on these tensors, as a function of its numbers.

    Its own launcher looks at each argument, and for hooks; what it has compiled for aligned tensors needs nothing but
    addresses.
    """
    out: Any = tensors[0]
    if grid in compiled and addresses is not None:
        _, run, function, metadata, table_addresses = compiled[grid]
        stream = torch._C._cuda_getCurrentRawStream(out.get_device())
        hooks = (None, None, None)
        return partial(run, *(*grid, 1, 1)[:3], stream, function, metadata, *hooks, *addresses, *table_addresses)

    def first(*numbers: Any) -> None:
        given = (out if x is None else x for x in tensors)
        made = kernel[grid](*given, *tables, *numbers, num_warps=4, num_stages=loads)
        if made is not None and addresses is not None:  # it is None where the kernel is interpreted
            table_addresses = tuple(table.data_ptr() for table in tables)
            # `made` keeps the kernel on the GPU
            compiled[grid] = made, made.run, made.function, made.packed_metadata, table_addresses

    return first


def product_precision(x: Tensor) -> str:
    """Of products, as Triton names it."""
    if x.dtype != torch.float32:
        return "ieee"
    asked = "tf32" in (_get_fp32_precision_getter("cuda", "matmul"), _get_fp32_precision_getter("generic", "all"))
    return "tf32" if asked else "ieee"
