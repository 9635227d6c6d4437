"""Derivatives by the input inside a loss: one sweep of a machine against what users of PyTorch and JAX would write.

Each program makes one step's gradient: the mean square of a differential operator's value, and its gradient by all
weights. Before anything is timed, the value and the norm of the gradients are compared with the machine's; all programs
of a row then take turns.
"""

import ctypes
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from rich.progress import Progress

from . import jet_programs
from .jet_cases import CASES, JetCase
from .measure import Peak, WrongAnswer, jax, norm, show, timed, verify, versions, warn_if_busy, write

jax_jets: Any = None
if jax is not None:
    from . import jax_jets

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
LONGEST = 2.0
"""Seconds of a call that is not repeated."""
TIME, NESTED = "time (µs)", "nested, plain"


def programs(case: JetCase, dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    """The step of each program, by name: (value, gradients). The machine's is the first."""
    net, x, direction = case.make(dtype)
    steps = dict(jet_programs.programs(case, net, x, direction))
    if jax_jets is not None:
        weights = jet_programs.weights_of(net)
        limit = steps.pop("limit")
        steps |= dict(jax_jets.programs(case, net, *weights, x, direction)) | {"limit": limit}
    return steps


def check(step: Callable[[], Any], expected: Any, dtype: torch.dtype) -> None:
    value, gradients = step()
    value = torch.as_tensor(value.tolist(), dtype=torch.float64).flatten()
    truth = expected[0].double().flatten()
    error = (value - truth).abs().max().item() / (1 + truth.abs().max().item())
    if not error <= TOLERANCE[dtype]:
        raise WrongAnswer(f"differs from the machine's derivatives by {error:.1e}")
    verify(gradients, norm(expected[1]), dtype)


def peak(step: Any) -> float | None:
    """Of one call, the median of three, each begun with what the allocator keeps given back to the system."""
    if hasattr(step, "mebibytes"):  # XLA says it
        return step.mebibytes()
    peaks = []
    for _ in range(3):
        if platform.libc_ver()[0] == "glibc":
            ctypes.CDLL(None).malloc_trim(0)
        memory = Peak(False)
        step()
        peaks.append(memory.mebibytes())
    return None if None in peaks else median(peaks)


def seconds_of(step: Callable[[], Any]) -> float:
    start = perf_counter()
    step()
    return perf_counter() - start


def measure(case: JetCase, dtype: torch.dtype, seconds: float) -> Iterator[dict[str, Any]]:
    steps = programs(case, dtype)
    expected = steps["machine"]()
    rows: dict[str, dict[str, Any]] = {}
    for program, step in steps.items():
        row = rows[program] = {"case": case.name, "dtype": str(dtype).removeprefix("torch."), "program": program}
        try:
            if program != "limit":
                check(step, expected, dtype)
            took = seconds_of(step)
            if took > LONGEST and (took := seconds_of(step)) > LONGEST:  # the first may have met another program
                row["error"] = f"one call takes {took:.1f} s"
            else:
                row["peak (MiB)"] = peak(step)
        except Exception as error:  # a competitor that cannot run a case is a row without times, and says why
            row["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
    compared = [program for program, row in rows.items() if "error" not in row]
    times = timed([steps[program] for program in compared], False, seconds)
    for program, quartiles in zip(compared, times, strict=True):
        rows[program] |= {name: round(t) for name, t in zip(("q1", TIME, "q3"), quartiles, strict=True)}
    for row in rows.values():
        if TIME in row:
            row["% of limit"] = round(100 * rows["limit"][TIME] / row[TIME], 1)
            row["times nested"] = round(rows[NESTED][TIME] / row[TIME], 2) if TIME in rows[NESTED] else ""
    yield from rows.values()


def run_jets(out: Path, *, quick: bool = False, only: str = "") -> Path:
    """Measure on the CPU, print a table, and write the CSV file whose path is returned."""
    cases = [(case, dtype) for case in CASES if only in case.name for dtype in (torch.float64, torch.float32)]
    if not cases:
        raise ValueError(f"no case with jets has {only!r} in its name: {'; '.join(case.name for case in CASES)}")
    where = versions(f"{torch.get_num_threads()}-core CPU")
    rows: list[dict[str, Any]] = []
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"jets-cpu{'-quick' if quick else ''}.csv"
    warn_if_busy()
    with Progress() as progress:
        task = progress.add_task("measuring", total=len(cases))
        for case, dtype in cases:
            progress.update(task, description=f"{case.name}, {str(dtype).removeprefix('torch.')}")
            rows += [row | where for row in measure(case, dtype, 0.1 if quick else 1.0)]
            write(rows, path)  # at once, so that a run cut short leaves what it had
            progress.advance(task)
    columns = ("q1", TIME, "q3", "peak (MiB)", "% of limit", "times nested")
    show(f"{where['device']}, forward and full backward", rows, {column: column for column in columns})
    return path
