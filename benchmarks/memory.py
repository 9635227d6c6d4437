"""Peak memory and time of a convolutional machine against the program a user would write: a list of blocks, torch.cat.

Both are the same network with all shortcuts. Every row runs in a process of its own. On a CPU the peak is the
process's resident memory above its high-water mark after a check on one sample; on CUDA the allocator counts it.

Run: python benchmarks/memory.py [--device cuda]
"""

import argparse
import csv
import json
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import resolvent as rv

CHANNELS, SPACE, KERNEL = 16, (32, 32), 3
BATCH = {"cpu": 32, "cuda": 512}  # large enough to stand out from the libraries' own workspace
BLOCKS = (4, 8, 16, 32)


class Concatenated(nn.Module):
    """The machine's network, written as usual."""

    def __init__(self, machine: rv.ConvMachine):
        super().__init__()
        weight, bias = machine.weight.detach(), machine.bias
        assert bias is not None
        blocks = machine.partition.blocks[1:]
        self.weights = nn.ParameterList([weight[to, : to.start].clone() for to in blocks])
        self.biases = nn.ParameterList([bias.detach()[to].clone() for to in blocks])

    def forward(self, x: Tensor) -> Tensor:
        blocks = [torch.relu(x)]
        for weight, bias in zip(self.weights, self.biases, strict=True):
            blocks.append(torch.relu(F.conv2d(torch.cat(blocks, 1), weight, bias, padding="same")))
        return torch.cat(blocks, 1)


def measure(program: str, blocks: int, device: str) -> dict[str, float]:
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False  # the machine computes in IEEE float32, so the other must too
    machine = rv.ConvMachine((CHANNELS,) * blocks, "relu", kernel_size=(KERNEL, KERNEL), device=device)
    model = machine if program == "machine" else Concatenated(machine)
    x = torch.randn(BATCH[device], CHANNELS, *SPACE, device=device)
    with torch.no_grad():
        torch.testing.assert_close(model(x[:1]), machine(x[:1]), rtol=1e-3, atol=1e-3)
    cuda = device == "cuda"
    if program != "machine":
        del machine

    def synchronize() -> float:
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def peak() -> float:
        if cuda:
            return torch.cuda.max_memory_allocated() / 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10

    if cuda:
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() / 2**20 if cuda else peak()
    forward, both = [], []
    for _ in range(5 if blocks > 16 and not cuda else 11):
        start = synchronize()
        z = model(x)
        middle = synchronize()
        z.sum().backward()
        forward.append(middle - start)
        both.append(synchronize() - start)
        del z
    quartiles = [torch.tensor(times).quantile(torch.tensor([0.25, 0.5, 0.75])) * 1e3 for times in (forward, both)]
    names = [f"{name} {q} (ms)" for name in ("forward", "forward + backward") for q in ("q1", "median", "q3")]
    return {"peak (MiB)": round(peak() - before, 1)} | {
        name: round(value, 2) for name, value in zip(names, torch.cat(quartiles).tolist(), strict=True)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--one", nargs=2, metavar=("PROGRAM", "BLOCKS"), help="measure one row and print it as JSON")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    if arguments.one:
        program, blocks = arguments.one
        print(json.dumps(measure(program, int(blocks), arguments.device)))
        return
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else f"{torch.get_num_threads()}-core CPU"
    batch = BATCH[arguments.device]
    where = {"batch": batch, "device": name, "python": platform.python_version(), "torch": torch.__version__}
    rows = []
    for program, blocks in track([(p, b) for b in BLOCKS for p in ("machine", "concatenated")], "measuring"):
        command = [sys.executable, __file__, "--device", arguments.device, "--one", program, str(blocks)]
        result = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append({"program": program, "blocks": blocks} | json.loads(result.stdout) | where)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / f"memory-{arguments.device}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    shown = ("program", "blocks", "peak (MiB)", "forward median (ms)", "forward + backward median (ms)")
    table = Table(*shown, title=f"{CHANNELS} channels a block, {SPACE[0]}×{SPACE[1]}, batch {batch}, float32, {name}")
    for row in rows:
        table.add_row(*(str(row[column]) for column in shown))
    Console().print(table)


if __name__ == "__main__":
    main()
