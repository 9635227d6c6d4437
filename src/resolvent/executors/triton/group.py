"""Blocks that share a stage, inside of the kernel for GPUs: in registers, one after another."""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

from .activation import z_of


@triton.jit
def _columns(x, TRANSPOSED: tl.constexpr):
    """The first of each four columns, the second, the third and the fourth; if transposed, the other way round."""
    even, odd = tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 4, 2, 2)))
    a, c = tl.split(even)
    b, d = tl.split(odd)
    return (d, c, b, a) if TRANSPOSED else (a, b, c, d)


@triton.jit
def _fed(y, z, W, edge, c, WIDTH: tl.constexpr, TRANSPOSED: tl.constexpr):
    """y with what channel c brings, where its block feeds it: an infinite z leaves alone what it does not feed.

    Where blocks do not reach over panels, other panels are fed by all of one, or are solved and may become anything.
    """
    return y + z * W if WIDTH else tl.where(edge <= c if TRANSPOSED else edge > c, y + z * W, y)


# fmt: off
@triton.jit
def narrow(
    total, W_group, edge, begin, end, column, at_point, z_shift, active, code,
    SOURCE: tl.constexpr, EVEN: tl.constexpr, WIDTH: tl.constexpr, TRANSPOSED: tl.constexpr,
    SIGMA: tl.constexpr, CODES: tl.constexpr, MASKED: tl.constexpr, HAS_Z0: tl.constexpr, dtype: tl.constexpr,
):
    # fmt: on
    """y of narrow blocks that share a stage, channel after channel, from what comes to them from elsewhere.

    What a channel feeds are columns of later blocks or, for the dual, of earlier ones. A thread has panels of four
    neighbouring columns, in which no value has to travel: all are solved at once, and one of them, in turn, is right.
    In full groups of blocks that all have a width that divides a panel, four panels share a turn of the loop.
    """
    panels_at_once: tl.constexpr = tl.constexpr(4 if WIDTH else 1)
    sums = _columns(total, TRANSPOSED)
    edge = _columns(edge, TRANSPOSED)
    slope = _columns(at_point, TRANSPOSED) if SIGMA >= 2 else sums
    shift = _columns(z_shift, TRANSPOSED) if HAS_Z0 else sums
    active_in = _columns(active.to(tl.int32), TRANSPOSED) if MASKED else sums
    y = sums  # as they are when their turn comes, after which they become anything
    panel = tl.arange(0, total.shape[1] // 4)[None, :]
    step = -1 if TRANSPOSED else 1
    panels = tl.cdiv(end - begin, 4)
    turn = panels - 1 if TRANSPOSED else 0
    first = begin + turn * 4 + (3 if TRANSPOSED else 0)
    at_row = W_group + first * SOURCE
    for _ in tl.range(0, panels // panels_at_once, num_stages=3 if WIDTH else 4):
        for p in tl.static_range(panels_at_once):
            W = ()
            for j in tl.static_range(4):
                row = at_row + (p * 4 + j) * step * SOURCE
                W_row = tl.load(row) if EVEN else tl.load(row, tl.maximum(column, first + j * step) < end, 0)
                W += (_columns(W_row[None, :].to(tl.float32), TRANSPOSED),)
            y_turn = ()
            z = ()
            for j in tl.static_range(4):
                new = sums[j]
                for h in tl.static_range(j // WIDTH * WIDTH if WIDTH else j):
                    new = _fed(new, z[h], W[h][j], edge[j], first + h * step, WIDTH, TRANSPOSED)
                y_turn += (tl.where(panel == turn, new, y[j]),)
                new = z_of(new, slope[j], shift[j], active_in[j] != 0, code, SIGMA, CODES, MASKED, HAS_Z0, dtype)
                z += (new.to(tl.float32),)
            y = y_turn
            for j in tl.static_range(4):
                z_j = tl.gather(z[j], tl.zeros((total.shape[0], 1), tl.int32) + turn, 1)
                fed = ()
                for k in tl.static_range(4):
                    fed += (_fed(sums[k], z_j, W[j][k], edge[k], first + j * step, WIDTH, TRANSPOSED),)
                sums = fed
            turn += step
            first += 4 * step
        at_row += panels_at_once * 4 * step * SOURCE
    if not WIDTH:
        y = sums
    if TRANSPOSED:
        y = (y[3], y[2], y[1], y[0])
    return tl.reshape(tl.join(tl.join(y[0], y[2]), tl.join(y[1], y[3])), total.shape)


@triton.jit
def block(x, b, WIDTH: tl.constexpr):
    """The columns of one of the blocks that lie side by side in x."""
    blocks: tl.constexpr = x.shape[1] // WIDTH
    chosen = (tl.arange(0, blocks) == b)[None, :, None]
    return tl.sum(tl.where(chosen, tl.reshape(x, (x.shape[0], blocks, WIDTH)), 0.0), 1)
