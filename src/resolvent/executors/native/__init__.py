"""The sweep in one native call, on CPUs: a system as a program of integers for the extension.

The extension is optional: where it was not built, the processor lacks what it was built for, or PyTorch does not show
its tensors through DLPack, the sweep runs step by step in PyTorch.
"""

from importlib import import_module
from itertools import chain
from typing import Any

import torch
from torch import Tensor, get_num_threads

from ... import pytorch
from ...structure.numbers import Numbers
from ...structure.sigma import Sigma
from ...sweep.plan import Activate, Loop, Step
from ...sweep.system import System


def _extension() -> Any:
    for name in ("_v4", "_v3", "_v1"):
        try:
            extension = import_module(f".{name}", __name__)
        except ImportError:
            continue
        extension.connect(*pytorch.memory())
        return extension
    return None


extension = _extension()
NOT_YET = object()
MOST_ORDER, MOST_NUMBERS = 30, 1 << 16
"""Of numbers that the extension takes."""


def serves(system: System, dtype: torch.dtype, positions: int) -> bool:
    return dtype in (torch.float64, torch.float32) and program(system) is not None


def sweep(
    system: System,
    sigma: Sigma,
    weight: Tensor,
    bias: Tensor | None,
    y0: Tensor | None,
    z0: Tensor | None,
) -> Any:
    mode, point, value, inside, history, numbers = sigma
    made = system.programs.get(extension, NOT_YET)
    made = program(system) if made is NOT_YET else made
    if made is None:
        return None
    algebra = None if numbers.real else program_of(numbers)
    if algebra is None and not numbers.real:
        return None
    tensors = (weight, bias, y0, z0, point, value, inside)
    done = extension.sweep(made, algebra, get_num_threads(), mode, history, *tensors)
    if done is None and (copies := _contiguous(*tensors)) is not None:
        operator, last = system.operator, copies[3]
        if last is not None and not system.transposed and last.ndim - (not numbers.real) in operator.ndims:
            whole = last.shape[operator.channel_axis] in system.partition.ends and not pytorch.was_freed(last)
            copies[3] = operator.extended(last) if whole else last
        done = extension.sweep(made, algebra, get_num_threads(), mode, history, *copies)
    return done


def gradients(
    system: System,
    sigma: Sigma,
    weight: Tensor,
    u0: Tensor | None,
    v0: Tensor | None,
    source: Tensor,
    by_bias: bool,
    channels: int,
) -> tuple[Tensor, Tensor | None, Tensor | None] | None:
    mode, point, value, inside, history, numbers = sigma
    made = program(system)
    if made is None:
        return None
    algebra = None if numbers.real else program_of(numbers)
    if algebra is None and not numbers.real:
        return None
    head, tail = (made, algebra, get_num_threads(), mode, history), (by_bias, channels)
    tensors = (weight, None, u0, v0, point, value, inside, source)
    done = extension.gradients(*head, *tensors, *tail)
    if done is None and (copies := _contiguous(*tensors)) is not None:
        done = extension.gradients(*head, *copies, *tail)
    return done


def cotangent(system: System, v: Tensor, z: Tensor, weight: Tensor | None = None) -> Tensor | None:
    made = program(system)
    if made is None:
        return None
    done = extension.cotangent(made, get_num_threads(), weight, v, z)
    if done is None and (copies := _contiguous(v, z)) is not None:
        done = extension.cotangent(made, get_num_threads(), weight, *copies)
    return done


def addresses(system: System, tensors: tuple[Tensor | None, ...]) -> tuple[int, ...] | None:
    """Of weight, bias, y0, z0, point, value and inside, 0 for None; or None where one is not as a kernel needs it.

    Before them: how many samples there are, how many channels y0 has or else z0, and whether an address is not aligned.
    """
    made = program(system)
    return None if made is None else extension.addresses(made, *tensors)


def program(system: System) -> Any:
    """What the extension parsed of a system; None for operators without a form and σ without codes."""
    if extension not in system.programs:
        served = system.form is not None and system.codes is not None
        made = extension.program(_program_integers(system)) if served and extension is not None else None
        system.programs[extension] = made
    return system.programs[extension]


def program_of(numbers: Numbers) -> Any:
    """What the extension parsed of numbers besides the reals; None of an order that it does not know."""
    key = id(extension)  # PyTorch 2.11's compiler, which sees numbers, hashes no module
    if key not in numbers.programs:
        lists = numbers.forward, numbers.backward, *numbers.powers
        integers, factors = [numbers.size, numbers.order], []
        for terms in lists:
            rows = sorted(zip(terms.k, terms.i, terms.j, terms.c, strict=True))
            integers += [len(rows), *chain.from_iterable((i, j, k) for k, i, j, _ in rows)]
            factors += [c for *_, c in rows]
        served = numbers.order <= MOST_ORDER and numbers.size <= MOST_NUMBERS
        numbers.programs[key] = extension.numbers(tuple(integers), tuple(factors)) if served else None
    return numbers.programs[key]


def _program_integers(system: System) -> tuple[int, ...]:
    """Form, direction, blocks, codes, rectangles and steps, each list with its length before it: see `program.h`."""
    form, partition = system.form, system.partition
    assert form is not None and system.codes is not None  # noqa: PT018  # as `program` asks first
    head = (
        form.kind,
        form.channels,
        form.lags,
        form.axes,
        *form.kernel,
        *form.before,
        int(system.transposed),
        int(system.packed),
    )
    ends = (end for r in system.rectangles for part in (r.lags, r.to, r.source) for end in (part.start, part.stop))
    return (
        *head,
        len(partition),
        *partition.ends,
        *system.codes,
        len(system.rectangles),
        *ends,
        *_steps(system.steps),
    )


def _steps(steps: tuple[Step, ...]) -> tuple[int, ...]:
    def one(step: Step) -> tuple[int, ...]:
        if isinstance(step, Loop):
            return 2, step.stride, *_steps(step.body)
        return (1, step.block) if isinstance(step, Activate) else (0, *step)

    return len(steps), *chain.from_iterable(map(one, steps))


def _contiguous(*tensors: Any) -> list[Any] | None:
    """The same as the extension wants them, if they are plain tensors in memory."""
    made = []
    for x in tensors:
        if x is not None:
            if type(x) not in pytorch.PLAIN or x.layout is not torch.strided:
                return None
            if not x.is_contiguous():
                if pytorch.was_freed(x):
                    return None
                x = x.contiguous()
        made.append(x)
    return made
