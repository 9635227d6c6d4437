"""The products of the library on a GPU: those between launches of the kernel, and the few large ones of Q."""

from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ...pytorch import without_autocast
from ...structure.operator import CONVOLUTION, DENSE, Product
from ...sweep.cut import form_of
from ...sweep.stages import cover
from ...sweep.system import System
from .kernel import cotangent_kernel
from .launch import on_gpu_of, outside_of_graphs, places, prepare, product_precision, readable

SMALL = 256  # channels and samples up to which Q is one launch


def adder(system: System, weight: Tensor, y: Tensor, z: Tensor) -> Callable[[Product, bool], None]:
    """The products of steps. Of dense ones each part is one view: views take as long as a small product."""
    operator, transposed, factors = system.operator, system.transposed, {}
    y, z = (x.view(-1, *x.shape[-operator.event_ndim :]) for x in (y, z))
    offset, (row, column) = weight.storage_offset(), weight.stride()[-2:]
    row, column = (column, row) if transposed else (row, column)  # of W or W*
    batch, n = y.shape[0], y.shape[-1]

    def add_dense(step: Product, written: bool) -> None:
        to, source = step.to.channels, step.source.channels
        start = offset + to.start * row + source.start * column
        W = weight.as_strided((len(source), len(to)), (column, row), start)
        y_to, z_source = (x.as_strided((batch, len(p)), (n, 1), p.start) for x, p in ((y, to), (z, source)))
        torch.mm(z_source, W, out=y_to) if written else y_to.addmm_(z_source, W)

    def add(step: Product, written: bool) -> None:
        if step.k not in factors:
            factors[step.k] = operator.factor(weight, system.rectangles[step.k], transposed)
        operator.add_product(y, z, factors[step.k], step, transposed)

    return add_dense if form_of(system).kind == DENSE else add


def cotangent(system: System, v: Tensor, z: Tensor, weight: Tensor | None = None) -> Tensor | None:
    """Q by few large products: each window, or each lag, as a whole, and then without what is not read.

    None where v and z are not as they must be, to fit the weight if it is given.
    """
    if system.packed:
        Q = None if weight is not None and weight.shape != system.weight_shape else cotangent(system.whole, v, z)
        return None if Q is None else Q.reshape(-1)[places(system, Q.device)]
    n = system.partition.total
    read = readable(system, (weight, None, v, z, None, None, None), (n,))  # v and z in the places of y0 and z0
    if read is None or read[1][1] != n:
        return None
    (_, _, v, z, *_), facts = read
    if not v.numel():
        return v.new_zeros(system.operator.weight_shape)
    with on_gpu_of(v), without_autocast(v):
        precision = product_precision(v.dtype)
        unread, compiled = _unread(system, precision, v.dtype, v.device)
        kind = form_of(system).kind
        if kind == DENSE:
            if n <= SMALL and facts[0] <= SMALL:
                return _of_few(v, z, facts, precision, unread, compiled)
            return _of_windows(system, v.reshape(-1, n), z.reshape(-1, n), unread)
        return (_of_taps if kind == CONVOLUTION else _of_lags)(system, v, z).masked_fill_(unread, 0)


def _of_few(v: Tensor, z: Tensor, facts: tuple[int, ...], precision: str, unread: Tensor, compiled: dict) -> Tensor:
    batch, n, unaligned, _, _, *addresses = facts
    Q, tiles = v.new_empty(n, n), -(-n // 32)
    known = None if unaligned else (Q.data_ptr(), *addresses[:2])
    loads = 4 if v.element_size() == 2 else 3
    prepare(cotangent_kernel, (tiles, tiles), (Q, v, z), known, (unread,), compiled, loads)(batch, n, precision)
    return Q


def _of_windows(system: System, v: Tensor, z: Tensor, unread: Tensor) -> Tensor:
    between, windows = cover(system, v.element_size() == 2)
    if len(windows) == 1:
        return (v.mT @ z).masked_fill_(unread, 0)
    operator, Q = system.operator, v.new_zeros(unread.shape)
    for rectangle in between:
        operator.add_cotangent(operator.entries(Q, rectangle), v, z, rectangle)
    for part in windows:
        Q[part, part].addmm_(v[:, part].mT, z[:, part]).masked_fill_(unread[part, part], 0)
    return Q


def _of_taps(system: System, v: Tensor, z: Tensor) -> Tensor:
    n, form = v.shape[-2], form_of(system)
    before, after = form.before[-1], form.kernel[-1] - 1 - form.before[-1]
    past = F.pad(z.reshape(-1, *z.shape[-2:]), (before, after)).unfold(2, v.shape[-1], 1)
    taps = past.permute(2, 0, 3, 1).reshape(past.shape[2], -1, n)  # (tap, batch and space, channels)
    Q = v.reshape(-1, *v.shape[-2:]).transpose(0, 1).reshape(n, -1) @ taps
    return Q.permute(1, 2, 0).contiguous()


def _of_lags(system: System, v: Tensor, z: Tensor) -> Tensor:
    lags, (steps, n) = form_of(system).lags, v.shape[-2:]
    past = F.pad(z.reshape(-1, steps, n), (0, 0, lags, 0)).unfold(1, steps, 1)  # (batch, lags + 1, channels, time)
    v = v.reshape(-1, n)
    few = max(1, 2**27 // max(1, v.numel()))  # lags whose copies of z fit in memory well
    parts = [
        v.mT @ past[:, max(0, stop - few) : stop].flip(1).permute(1, 0, 3, 2).reshape(-1, *v.shape)
        for stop in range(lags + 1, 0, -few)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


@lru_cache(maxsize=64)
@outside_of_graphs
def _unread(system: System, precision: str, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, dict]:
    """Where W is not read, and the kernels that were compiled for it in this precision."""
    return (~system.operator.mask(system.connections.expand(system.partition))).to(device), {}
