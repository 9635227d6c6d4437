"""Machines against the programs a user would write, side by side in one run.

Rows: the machine through autograd (`machine`), by its explicit passes without autograd (`passes`) and compiled; `loop`,
a list of blocks with torch.cat, eager and compiled; and `limit`, one product with the machine's arithmetic. Before
anything is timed, the machine equation's residual and the agreement of each program with the machine are checked: a
wrong answer reports no time.

Run: python benchmarks/run.py [--device cuda] [--quick] [--no-compile] [--only TEXT]
"""

import argparse
import csv
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cases import LARGE, PAPER, Case
from programs import limit, loop
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

COLUMNS = ("forward", "backward to inputs", "forward + full backward")
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 0.1}


def timed(function: Callable[[], Any], cuda: bool, seconds: float) -> tuple[float, float, float]:
    """First quartile, median and third quartile of one call, in microseconds."""

    def batch(calls: int) -> float:
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            function()
        if cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / calls

    batch(2)
    calls = max(1, min(1000, int(seconds / 20 / max(batch(1), 1e-7))))
    samples, end = [], time.perf_counter() + seconds
    while len(samples) < 5 or (time.perf_counter() < end and len(samples) < 100):
        samples.append(batch(calls))
    q1, median, q3 = (torch.tensor(samples).quantile(torch.tensor([0.25, 0.5, 0.75])) * 1e6).tolist()
    return q1, median, q3


def through_autograd(
    function: Callable[..., Tensor], y0: Tensor, weights: list[Tensor]
) -> dict[str, Callable[[], Any]]:
    """The three columns of a program that autograd differentiates."""
    leaves = [weight.detach().clone().requires_grad_() for weight in weights]
    frozen = [weight.detach() for weight in weights]
    x = y0.detach().clone().requires_grad_()
    seed = torch.ones_like(y0)
    to_inputs = function(x, frozen)

    def forward() -> None:
        with torch.no_grad():
            function(y0, frozen)

    return {
        "forward": forward,
        "backward to inputs": lambda: torch.autograd.grad(to_inputs, x, seed, retain_graph=True),
        "forward + full backward": lambda: torch.autograd.grad(
            function(x, leaves), [x, *leaves], seed, materialize_grads=True
        ),
    }


def passes(machine: Any, y0: Tensor) -> dict[str, Callable[[], Any]]:
    """The three columns by `solve`, `dual` and `weight_cotangent`, without autograd."""
    seed = torch.ones_like(y0)
    with torch.no_grad():
        y, _ = machine.solve(y0)

    @torch.no_grad()
    def forward():
        return machine.solve(y0)

    @torch.no_grad()
    def backward():
        return machine.dual(y).solve(seed)

    @torch.no_grad()
    def both():
        y, z = machine.solve(y0)
        _, v = machine.dual(y).solve(seed)
        return machine.weight_cotangent(v, z)

    return {"forward": forward, "backward to inputs": backward, "forward + full backward": both}


def programs(case: Case, machine: Any, y0: Tensor, compiled: bool):
    """Each program's name and its columns, built when asked for."""

    def call(x: Tensor, weights: list[Tensor]) -> Tensor:
        return torch.func.functional_call(machine, {"weight": weights[0]}, (x,))

    run, weights = loop(machine)
    yield "machine", lambda: through_autograd(call, y0, [machine.weight])
    yield "passes", lambda: passes(machine, y0)
    yield "loop", lambda: through_autograd(run, y0, weights)
    if compiled:
        modes = [None, "reduce-overhead"] if y0.is_cuda else [None]
        for mode in modes:
            suffix = f", {mode}" if mode else ""
            yield (
                f"machine compiled{suffix}",
                lambda mode=mode: through_autograd(torch.compile(call, mode=mode), y0, [machine.weight]),
            )
            yield (
                f"loop compiled{suffix}",
                lambda mode=mode: through_autograd(torch.compile(run, mode=mode), y0, weights),
            )
    yield "limit", lambda: {"forward": limit(machine, y0)}


def check(machine: Any, y0: Tensor) -> float:
    """The largest residual of y = W z + y0, z = σ(y), and of the loop against the machine, relative to the values."""
    with torch.no_grad():
        y, z = machine.solve(y0)
        Wz, sigma = machine.endofunction(y, z)
        run, weights = loop(machine)
        residuals = [(y - Wz - y0), (z - sigma), run(y0, weights) - z]
        return max(r.abs().max().item() for r in residuals) / (1 + y.abs().max().item())


def measure(case: Case, dtype: torch.dtype, device: str, seconds: float, compiled: bool, where: dict[str, str]):
    torch.manual_seed(0)
    machine = case.build(bias=False, device=device, dtype=dtype).requires_grad_(True)
    y0 = torch.randn(case.shape, device=device, dtype=dtype)
    residual = check(machine, y0)
    for program, build in programs(case, machine, y0, compiled):
        row: dict[str, Any] = {"case": case.name, "dtype": str(dtype).removeprefix("torch."), "program": program}
        row["residual"] = f"{residual:.1e}"
        if residual <= TOLERANCE[dtype]:
            try:
                torch._dynamo.reset()
                if device == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                for column, function in build().items():
                    q1, median, q3 = timed(function, device == "cuda", seconds)
                    row |= {
                        f"{column} (µs)": round(median, 1),
                        f"{column} q1": round(q1, 1),
                        f"{column} q3": round(q3, 1),
                    }
                if device == "cuda":
                    row["peak (MiB)"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
                if "backward to inputs (µs)" in row:
                    row["ratio"] = round(row["backward to inputs (µs)"] / row["forward (µs)"], 3)
            except Exception as error:  # a competitor that cannot run a case is a row without times, and says why
                row["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        yield row | where


def write(rows: list[dict[str, Any]], path: Path) -> None:
    fields = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="the paper's rows, not compiled, within a minute")
    parser.add_argument("--no-compile", action="store_true", help="leave out the compiled programs")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases with this text in their name")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    device = arguments.device
    torch.backends.cudnn.allow_tf32 = False  # machines compute in IEEE float32, so the others must too
    name = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()}-core CPU"
    where = {"device": name, "python": platform.python_version(), "torch": torch.__version__}
    cases = [
        (case, dtype)
        for case in (PAPER if arguments.quick else PAPER + LARGE)
        for dtype in case.dtypes
        if device in case.devices and arguments.only in case.name and not (device == "cuda" and dtype == torch.float64)
    ]
    compiled = not (arguments.quick or arguments.no_compile)
    seconds = 0.15 if arguments.quick else 0.5
    rows: list[dict[str, Any]] = []
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"{device}{'-quick' if arguments.quick else ''}.csv"
    with Progress() as progress:
        task = progress.add_task("measuring", total=len(cases))
        for case, dtype in cases:
            progress.update(task, description=f"{case.name}, {str(dtype).removeprefix('torch.')}")
            rows += measure(case, dtype, device, seconds, compiled, where)
            write(rows, path)  # after each case, so that a run cut short leaves what it had
            progress.advance(task)
    table = Table("case", "dtype", "program", *(f"{column} (µs)" for column in COLUMNS), "ratio", title=name)
    for row in rows:
        times = (row.get(f"{column} (µs)", row.get("error", "")) for column in COLUMNS)
        table.add_row(row["case"], row["dtype"], row["program"], *map(str, times), str(row.get("ratio", "")))
    Console().print(table)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
