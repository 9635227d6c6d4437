"""Machines against the programs a user would write, side by side in one run.

Rows: the machine through autograd (`machine`), by its explicit passes without autograd (`passes`) and compiled; `loop`,
a list of blocks with torch.cat, eager and compiled, and in JAX where that is installed; `layer`, the nn.Linear, nn.Conv
or nn.RNN of the same width as a landmark; and `limit`, one product with the machine's arithmetic. Before anything is
timed, the machine equation's residual and the agreement of `loop`, here and in JAX, are checked, and before a full
backward pass is, the norm of the weights' gradients: a wrong answer reports no time.
"""

import csv
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from .cases import LARGE, PAPER, Case
from .programs import layer, limit, loop

jax: Any
loop_in_jax: Any
try:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax  # pyright: ignore

    from .jax_loop import loop as loop_in_jax
except ImportError:
    jax = loop_in_jax = None

COLUMNS = ("forward", "backward to inputs", "forward + full backward")
Columns = Iterator[dict[str, Callable[[], Any]]]
"""What a program is timed by: those of one dictionary in turns, and each dictionary before the next one is made."""
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 0.1}


class WrongAnswer(ValueError):
    """For which no time is reported."""


def timed(functions: Sequence[Callable[[], Any]], cuda: bool, seconds: float) -> list[tuple[float, float, float]]:
    """First quartile, median and third quartile of one call of each, in microseconds.

    They take turns, so that their ratio is one of times in which the processor had the same speed.
    """

    def batch(function: Callable[[], Any], calls: int) -> float:
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            function()
        if cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / calls

    calls = [max(1, min(1000, int(seconds / 20 / max(batch(function, 1), 1e-7)))) for function in functions]
    samples, end = [], time.perf_counter() + seconds * len(functions)
    while len(samples) < 3 or (time.perf_counter() < end and len(samples) < 100):
        samples.append([batch(*turn) for turn in zip(functions, calls, strict=True)])
    quartiles = torch.tensor(samples).quantile(torch.tensor([0.25, 0.5, 0.75]), dim=0) * 1e6
    return [(q1, median, q3) for q1, median, q3 in quartiles.T.tolist()]


def through_autograd(function: Callable[..., Tensor], y0: Tensor, weights: list[Tensor]) -> Columns:
    """The three columns of a program that autograd differentiates; `forward` runs without a graph.

    The last one gives the weights' gradients, here and below.
    """
    x = y0.detach().clone().requires_grad_()
    seed = torch.ones_like(y0)
    for weight in weights:
        weight.requires_grad_(False)
    yield {"forward": lambda: function(y0, weights)}  # which in CUDA graphs would take the memory of what follows
    to_inputs = function(x, weights)
    yield {"backward to inputs": lambda: torch.autograd.grad(to_inputs, x, seed, retain_graph=True)}
    for weight in weights:
        weight.requires_grad_(True)
    torch.compiler.reset()  # what PyTorch 2.11 has compiled would go on without the gradients of a module's weights
    yield {
        "forward + full backward": lambda: torch.autograd.grad(
            function(x, weights), [x, *weights], seed, allow_unused=True
        )[1:]
    }


def passes(machine: Any, y0: Tensor) -> Columns:
    """The three columns by `solve`, `dual` and `weight_cotangent`, without autograd."""
    seed = torch.ones_like(y0)
    machine.requires_grad_(False)
    y, z = machine.solve(y0)

    def both() -> list[Tensor]:
        y, z = machine.solve(y0)
        _, v = machine.dual(y, value=z).solve(seed)
        return [machine.weight_cotangent(v, z)]

    yield {
        "forward": lambda: machine.solve(y0),
        "backward to inputs": lambda: machine.dual(y, value=z).solve(seed),
        "forward + full backward": both,
    }


def by_jax(machine: Any, y0: Tensor, weights: list[Tensor]) -> Columns:
    """Forward, and forward with full backward; JAX has no backward pass of its own to call."""
    run = loop_in_jax(machine)
    dtype = str(y0.dtype).removeprefix("torch.")
    x, *Ws = (jax.numpy.asarray(w.detach().double().cpu().numpy(), dtype=dtype) for w in (y0, *weights))
    with torch.no_grad():
        error = abs(jax.numpy.asarray(run(x, Ws), "float64") - machine(y0).double().cpu().numpy()).max()
    if not error <= TOLERANCE[y0.dtype]:
        raise WrongAnswer(f"differs from the machine by {error}")

    def differentiate(x: Any, Ws: Any) -> Any:
        z, pull = jax.vjp(run, x, Ws)
        return z, pull(jax.numpy.ones_like(z))

    forward, both = jax.jit(run), jax.jit(differentiate)
    yield {
        "forward": lambda: jax.block_until_ready(forward(x, Ws)),
        "forward + full backward": lambda: jax.block_until_ready(both(x, Ws))[1][1],
    }


def programs(machine: Any, y0: Tensor, compiled: int) -> Iterator[tuple[str, Callable[[], Iterable]]]:
    """Each program's name and its columns, built when asked for."""

    def call(x: Tensor, _: list[Tensor]) -> Tensor:
        return machine(x)

    run, weights = loop(machine)
    unrolled = len(machine.partition) * machine.operator.time_steps(y0)
    yield "machine", lambda: through_autograd(call, y0, [machine.weight])
    yield "passes", lambda: passes(machine, y0)
    yield "loop", lambda: through_autograd(run, y0, weights)
    if compiled:
        for mode in [None, "reduce-overhead"] if y0.is_cuda else [None]:
            suffix = f", {mode}" if mode else ""
            yield (
                f"machine compiled{suffix}",
                lambda mode=mode: through_autograd(torch.compile(call, mode=mode), y0, [machine.weight]),
            )
            if unrolled <= compiled:
                yield (
                    f"loop compiled{suffix}",
                    lambda mode=mode: through_autograd(torch.compile(run, mode=mode), y0, weights),
                )
    if jax is not None and unrolled <= (100 if compiled else 20):  # beyond, compiling takes long
        yield "loop in jax.jit", lambda: by_jax(machine, y0, weights)
    yield "layer", lambda: through_autograd(*layer(machine, y0))
    yield "limit", lambda: [{"forward": limit(machine, y0)}]


class Peak:
    """Memory of one call above what was there before: the allocator's on a GPU, the resident set on Linux."""

    def __init__(self, cuda: bool):
        self.cuda = cuda
        if cuda:
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
        elif platform.system() == "Linux":
            Path("/proc/self/clear_refs").write_text("5")  # forgets the highest resident set
            self.before = self._resident("VmRSS")

    def mebibytes(self) -> float | None:
        if self.cuda:
            return round((torch.cuda.max_memory_allocated() - self.before) / 2**20, 1)
        return round((self._resident("VmHWM") - self.before) / 2**20, 1) if platform.system() == "Linux" else None

    @staticmethod
    def _resident(field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 2**10


def check(machine: Any, y0: Tensor) -> float:
    """The largest residual of y = W z + y0, z = σ(y), and of the loop against the machine, relative to the values."""
    with torch.no_grad():
        y, z = machine.solve(y0)
        Wz, sigma = machine.endofunction((y, z))
        run, weights = loop(machine)
        residuals = [(y - Wz - y0), (z - sigma), run(y0, weights) - z]
        return max(r.abs().max().item() for r in residuals) / (1 + y.abs().max().item())


def norm(gradients: Any) -> float:
    """Of all entries together, whichever weights they are of, in PyTorch or JAX; None is zero."""
    return sum(float((g**2).sum()) for g in gradients if g is not None) ** 0.5


def verify(gradients: Any, expected: float, dtype: torch.dtype) -> None:
    error = abs(norm(gradients) - expected) / (expected or 1)
    if not error <= TOLERANCE[dtype]:
        raise WrongAnswer(f"the weights' gradients differ in norm from the machine's by {error:.1e}")


def measure(case: Case, dtype: torch.dtype, device: str, seconds: float, compiled: int, where: dict[str, str]):
    torch.manual_seed(0)
    machine = case.build(bias=False, device=device, dtype=dtype)
    y0 = torch.randn(case.shape, device=device, dtype=dtype)
    residual = check(machine, y0)
    with torch.no_grad():
        (columns,) = passes(machine, y0)
        expected = norm(columns[COLUMNS[-1]]())
    for program, build in programs(machine, y0, compiled):
        row: dict[str, Any] = {"case": case.name, "dtype": str(dtype).removeprefix("torch."), "program": program}
        row["residual"] = f"{residual:.1e}"
        if residual <= TOLERANCE[dtype]:
            try:
                torch.compiler.reset()
                for columns in build():
                    for column, function in columns.items():
                        if column == COLUMNS[-1] and program != "layer":
                            verify(function(), expected, dtype)
                        else:
                            function()
                        peak = Peak(device == "cuda")
                        function()
                        row[f"{column} peak (MiB)"] = peak.mebibytes()
                    times = timed(list(columns.values()), device == "cuda", seconds)
                    for column, quartiles in zip(columns, times, strict=True):
                        names = (f"{column} q1", f"{column} (µs)", f"{column} q3")
                        row |= {name: round(t, 1) for name, t in zip(names, quartiles, strict=True)}
                if "backward to inputs (µs)" in row:
                    row["ratio"] = round(row["backward to inputs (µs)"] / row["forward (µs)"], 3)
            except WrongAnswer as error:
                row = {key: row[key] for key in ("case", "dtype", "program", "residual")} | {"error": str(error)}
            except Exception as error:  # a competitor that cannot run a case is a row without times, and says why
                row["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        yield row | where


def write(rows: list[dict[str, Any]], path: Path) -> None:
    fields = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerows(rows)


def versions(device: str) -> dict[str, str]:
    """What each row says of where it was measured."""
    where = {"device": device, "python": platform.python_version(), "torch": torch.__version__}
    return where | {"jax": "" if jax is None else jax.__version__}


def warn_if_busy() -> None:
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if busy > 0.5:
        warning = f"programs kept {busy:.1f} processors busy in the last minute: if they still do, times are too long"
        Console(stderr=True).print(warning, style="yellow")


def show(title: str, rows: list[dict[str, Any]], columns: Mapping[str, str]) -> None:
    """A table of some columns, by what is written over them; an error stands where times are missing."""
    table = Table(title=title)
    for column in ("program", *columns):
        table.add_column(column, justify="left" if column == "program" else "right")
    for (case, dtype), group in groupby(rows, itemgetter("case", "dtype")):
        table.add_section()
        table.add_row(f"[bold]{case}, {dtype}")
        for row in group:
            errors = {key: row.get("error", "") for key in columns.values() if key.endswith("(µs)")}
            table.add_row(row["program"], *(str((errors | row).get(key, "")) for key in columns.values()))
    Console().print(table)


def run(
    out: Path,
    *,
    device: str = "cpu",
    quick: bool = False,
    compiled: int = 100,
    large: bool = False,
    only: str = "",
    same_thread: bool = False,
) -> Path:
    """Measure, print a table, and write the CSV file whose path is returned.

    `compiled`: loops of up to so many blocks times steps are compiled, 0 for no compiled programs. `quick` measures the
    paper's cases, not compiled, within a minute; `large` only the larger ones. `same_thread` has backward passes run in
    the calling thread, for all PyTorch programs.
    """
    cases = [
        (case, dtype)
        for case in (LARGE if large else PAPER if quick else PAPER + LARGE)
        for dtype in case.dtypes
        if device in case.devices and only in case.name and not (device == "cuda" and dtype == torch.float64)
    ]
    if not cases:
        raise ValueError(f"no case for {device} has {only!r} in its name: {', '.join(c.name for c in PAPER + LARGE)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda' was asked for, PyTorch finds no GPU")
    if quick and large:
        raise ValueError("quick measures the paper's cases, large the larger ones: one of them")
    name = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()}-core CPU"
    where = versions(name)
    compiled, seconds = 0 if quick else compiled, 0.15 if quick else 0.5
    rows: list[dict[str, Any]] = []
    out.mkdir(parents=True, exist_ok=True)
    flags = [flag for flag, on in (("large", large), ("quick", quick), ("same-thread", same_thread)) if on]
    path = out / f"{'-'.join((device, *flags))}.csv"
    warn_if_busy()
    # machines compute in IEEE float32, so the others must too
    exactly = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
    with Progress() as progress, exactly, torch.autograd.set_multithreading_enabled(not same_thread):
        task = progress.add_task("measuring", total=len(cases))
        for case, dtype in cases:
            progress.update(task, description=f"{case.name}, {str(dtype).removeprefix('torch.')}")
            for row in measure(case, dtype, device, seconds, compiled, where):
                rows.append(row)
                write(rows, path)  # at once, so that a run cut short leaves what it had
            progress.advance(task)
    show(f"{name}, in microseconds", rows, {column: f"{column} (µs)" for column in COLUMNS} | {"ratio": "ratio"})
    return path
