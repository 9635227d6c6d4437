"""The kernels for GPUs: a sweep over stages, and the cotangent of a small weight.

A program of the sweep has a few samples. For stage after stage it pulls what earlier stages of its window bring,
applies σ and stores; blocks that share a stage it solves in registers, channel after channel or block after block.
Precision: products are IEEE float32 unless the user has allowed TF32, and bfloat16 is accumulated in float32.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

from .activation import sigma, z_of
from .group import block, narrow

FIELDS = tl.constexpr(14)  # of a stage: see `Schedule.stages`


# Its arguments are many since a launch has flat ones: each is a pointer, a number, or a constant that Triton compiles
# for, and what it has compiled is launched with all of them in this order.
# fmt: off
@triton.jit(do_not_specialize=["times", "history", "first", "last", "batch"])
def sweep_kernel(  # noqa: C901  # a kernel is one function: what it has in registers ends with it
    y, z, weight, bias, y0, z0, point, value, inside, stages, sources, edges, times, history, first, last, batch,
    n: tl.constexpr, SOURCE: tl.constexpr, TO: tl.constexpr, UNIT: tl.constexpr,
    ROW: tl.constexpr, COLUMN: tl.constexpr, CONV: tl.constexpr, BEFORE: tl.constexpr,
    LONGEST: tl.constexpr, CHUNKED: tl.constexpr, LONG: tl.constexpr, TRANSPOSED: tl.constexpr,
    INPUTS: tl.constexpr, HAS_BIAS: tl.constexpr, ADDED: tl.constexpr, HAS_Z0: tl.constexpr,
    SIGMA: tl.constexpr, CODES: tl.constexpr, KNOWN: tl.constexpr, INSIDE: tl.constexpr, MASKED: tl.constexpr,
    TIMES: tl.constexpr, ROWS: tl.constexpr, N_TILE: tl.constexpr, K_TILE: tl.constexpr, EVEN: tl.constexpr,
    WIDE_INDEX: tl.constexpr, GROUPED: tl.constexpr, WIDTH: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):
    # fmt: on
    dtype: tl.constexpr = y.dtype.element_ty
    row = tl.arange(0, ROWS)
    sample = row // TIMES  # of this program, so that places in memory are small numbers, unless a sample is large
    if WIDE_INDEX:
        sample = sample.to(tl.int64)
    begins = tl.program_id(0).to(tl.int64) * (ROWS // TIMES)
    mine = (begins + sample < batch) & (row < ROWS // TIMES * TIMES)
    y0 += begins * times * INPUTS
    begins *= times * n
    y += begins
    z += begins
    z0 += begins
    point += begins
    value += begins
    inside += begins
    t_next = tl.load(stages + first * FIELDS)
    for index in range(first, last):
        stage = stages + index * FIELDS
        t = t_next + row % TIMES
        t_next = tl.load(stage + FIELDS)  # brings the next stage near
        here = mine & (t < tl.load(stage + 1))
        begin = tl.load(stage + 2) * UNIT
        end = tl.load(stage + 3) * UNIT
        origin = tl.load(stage + 4) * UNIT
        code = tl.load(stage + 5)
        lag = tl.load(stage + 7)
        k_begin = tl.load(stage + 8)
        k_end = tl.load(stage + 9)
        next_source = tl.load(stage + 10)
        bound = tl.load(stage + 13)
        column = begin + tl.arange(0, N_TILE)
        mask = here[:, None] & (column < end)[None, :]
        place = sample * (times * n) + t * ROW
        at = place[:, None] + column[None, :] * COLUMN
        # what comes from far is on its way while the stage pulls, and used after it
        total = tl.zeros((ROWS, N_TILE), tl.float32)
        y_shift = total
        y_added = total
        z_shift = total
        at_point = total
        at_value = total
        active = mask  # where σ acts
        if INPUTS:  # the first channels, which y0 has
            given = sample * (times * INPUTS) + t * (ROW if CONV else INPUTS)
            has = here[:, None] & (column < tl.minimum(end, INPUTS))[None, :]
            y_shift = tl.load(y0 + given[:, None] + column[None, :] * COLUMN, has, 0)
        if ADDED:  # by products, unless the stage says no
            added = end * tl.load(stage + 12)
            y_added = tl.load(y + at, here[:, None] & (column < added)[None, :], 0)
        if HAS_Z0:
            z_shift = tl.load(z0 + at, mask, 0)
        if SIGMA >= 2:
            at_point = tl.load(point + at, mask, 0)
        if KNOWN:
            at_value = tl.load(value + at, mask, 0)
        if INSIDE:
            active = tl.load(inside + at, mask, 0) != 0
        if MASKED:  # σ is 0 elsewhere
            active = active & (code >= 0)
        parts = tl.zeros((1 if DOT else K_TILE, N_TILE), tl.float32)  # of the sum over sources, for one row
        for source in range(next_source - 1, tl.load(stage + 11)):  # the first one came with the stage
            if source >= next_source:
                lag = tl.load(sources + source * 3)
                k_begin = tl.load(sources + source * 3 + 1)
                k_end = tl.load(sources + source * 3 + 2)
            shift = BEFORE - lag if CONV else lag
            shift = -shift if TRANSPOSED else shift
            reached = here
            if CONV or TIMES > 1:  # of one step alone, sources are what it reaches
                from_step = history if TRANSPOSED else 0
                to_step = times
                if CHUNKED:  # at long lags, what lies outside of the chunk comes by products
                    if lag >= LONG:
                        if TRANSPOSED:
                            to_step = tl.minimum(times, bound)
                        else:
                            from_step = bound
                reached = here & (t - shift >= from_step) & (t - shift < to_step)
            past = place - shift * ROW
            matrix = weight + (LONGEST - lag if LONGEST else lag).to(tl.int64) * (n * n)
            for k in range(k_begin * UNIT, k_end * UNIT, K_TILE):
                inner = k + tl.arange(0, K_TILE)
                W_tile = matrix + inner[:, None] * SOURCE + (column - origin)[None, :] * TO
                if EVEN:  # tiles fit exactly
                    W = tl.load(W_tile)
                else:
                    W = tl.load(W_tile, (inner < k_end * UNIT)[:, None] & (column < end)[None, :], 0)
                if DOT:
                    seen = reached[:, None] if EVEN else reached[:, None] & (inner < k_end * UNIT)[None, :]
                    x = tl.load(z + past[:, None] + inner[None, :] * COLUMN, seen, 0)
                    total += tl.dot(x, W, input_precision=PRECISION)
                else:
                    seen = inner < k_end * UNIT * tl.max(reached.to(tl.int32), 0)
                    x = tl.load(z + tl.max(past, 0) + inner * COLUMN, seen, 0)
                    parts += x.to(tl.float32)[:, None] * W.to(tl.float32)
        if not DOT:
            total += tl.sum(parts, 0)[None, :]
        if HAS_BIAS:
            total += tl.load(bias + column, column < end, 0).to(tl.float32)[None, :]
        total += y_shift.to(tl.float32) + y_added.to(tl.float32)
        at_point = at_point.to(tl.float32)
        at_value = at_value.to(tl.float32)
        z_shift = z_shift.to(tl.float32)
        if SIGMA == 3:
            at_point = sigma(at_point, at_value, code, True, CODES, KNOWN)
        if GROUPED == 1:
            if tl.load(stage + 6) != 0:
                W_group = weight + LONGEST * n * n + (column - origin) * TO  # at lag 0
                total = tl.where((column < end)[None, :], total, 0)  # what is not there feeds nothing
                every = tl.zeros((ROWS, 1), tl.int32) + column[None, :]
                edge = tl.load(edges + every, every < end, n if TRANSPOSED else 0)
                # fmt: off
                total = narrow(
                    total, W_group, edge, begin, end, column, at_point, z_shift, active, code,
                    SOURCE, EVEN, WIDTH, TRANSPOSED, SIGMA, CODES, MASKED, HAS_Z0, dtype,
                )
                # fmt: on
        if GROUPED > 1:  # block after block, of which the last one feeds none
            others = ((end - begin) // GROUPED - 1) * tl.load(stage + 6)
            for i in tl.range(0, others, num_stages=3):
                b = others - i if TRANSPOSED else i
                c = begin + b * GROUPED + tl.arange(0, GROUPED)
                W_rows = weight + c[:, None] * SOURCE + (column - origin)[None, :] * TO
                W = tl.load(W_rows) if EVEN else tl.load(W_rows, (column < end)[None, :], 0)
                slope_b = block(at_point, b, GROUPED) if SIGMA >= 2 else 0
                shift_b = block(z_shift, b, GROUPED) if HAS_Z0 else 0
                active_b = block(active.to(tl.float32), b, GROUPED) != 0 if MASKED else 0
                y_b = block(total, b, GROUPED)
                z_b = z_of(y_b, slope_b, shift_b, active_b, code, SIGMA, CODES, MASKED, HAS_Z0, dtype)
                fed = column < begin + b * GROUPED if TRANSPOSED else column >= begin + (b + 1) * GROUPED
                total = tl.where(fed[None, :], tl.dot(z_b, W, total, input_precision=PRECISION), total)
        tl.store(y + at, total.to(dtype), mask)
        new = z_of(total, at_point, z_shift, active, code, SIGMA, CODES, MASKED, HAS_Z0, dtype)
        tl.store(z + at, new, mask)
        tl.debug_barrier()


@triton.jit(do_not_specialize=["batch"])
def cotangent_kernel(Q, v, z, unread, batch, n: tl.constexpr, PRECISION: tl.constexpr):
    """Q = v z* where W is read, of few channels and samples; each program has one tile."""
    row = tl.program_id(0) * 32 + tl.arange(0, 32)
    column = tl.program_id(1) * 32 + tl.arange(0, 32)
    at = row[:, None] * n + column[None, :]
    inside = (row < n)[:, None] & (column < n)[None, :]
    total = tl.zeros((32, 32), tl.float32)
    for first in range(0, batch, 32):
        sample = first + tl.arange(0, 32)
        v_tile = tl.load(v + row[:, None] + sample[None, :] * n, (row < n)[:, None] & (sample < batch)[None, :], 0)
        z_tile = tl.load(
            z + sample[:, None] * n + column[None, :], (sample < batch)[:, None] & (column < n)[None, :], 0
        )
        total += tl.dot(v_tile, z_tile, input_precision=PRECISION)
    read = tl.load(unread + at, inside, 1) == 0
    tl.store(Q + at, tl.where(read, total, 0).to(Q.dtype.element_ty), inside)
