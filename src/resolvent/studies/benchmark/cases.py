"""What is measured: the paper's rows and larger machines."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import resolvent as rv


@dataclass(frozen=True)
class Case:
    """A machine to build, and the shape of its full points."""

    kind: str
    size: str
    build: Callable[..., Any]
    shape: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    devices: tuple[str, ...] = ("cpu", "cuda")

    @property
    def name(self) -> str:
        return f"{self.kind} {self.size}"


def _dense(blocks: int, width: int, batch: int) -> tuple[Callable[..., Any], tuple[int, ...]]:
    return lambda **options: rv.DenseMachine((width,) * blocks, **options), (batch, blocks * width)


def _conv(blocks: int, width: int, batch: int, space: tuple[int, ...], kernel) -> tuple[Callable[..., Any], tuple]:
    def build(**options):
        return rv.ConvMachine((width,) * blocks, kernel_size=kernel, **options)

    return build, (batch, blocks * width, *space)


def _recurrent(blocks: int, width: int, batch: int, steps: int, lags: int, time_block: int = 1):
    def build(**options):
        return rv.RecurrentMachine((width,) * blocks, lags=lags, time_block=time_block, **options)

    return build, (batch, steps, blocks * width)


BOTH = (torch.float64, torch.float32)

# Five blocks; padding (3, 3) is a kernel of 7. CPU rows in float64 as the authors' and in float32, GPU rows in float32.
PAPER = [
    Case("dense", "small", *_dense(5, 2, 2), BOTH),
    Case("dense", "medium", *_dense(5, 32, 32), BOTH),
    Case("convolution", "small", *_conv(5, 2, 2, (16,), 7), BOTH),
    Case("convolution", "medium", *_conv(5, 32, 32, (16,), 7), BOTH),
    Case("recurrent", "small", *_recurrent(5, 2, 2, 16, 6, 5), BOTH),
    Case("recurrent", "medium", *_recurrent(5, 32, 32, 16, 6, 5), BOTH),
]

LARGE = [
    Case("dense", "16×64, batch 1,024", *_dense(16, 64, 1024)),
    Case("dense", "64×64, batch 4,096", *_dense(64, 64, 4096), (torch.float32, torch.bfloat16), ("cuda",)),
    Case("dense", "256×16, batch 4,096", *_dense(256, 16, 4096), devices=("cuda",)),
    Case("dense", "1,024×1, batch 1,024", *_dense(1024, 1, 1024), devices=("cuda",)),
    Case("convolution", "8×64, 1,024 steps, batch 64", *_conv(8, 64, 64, (1024,), 3), devices=("cuda",)),
    Case("convolution", "8×32, 32×32, batch 64", *_conv(8, 32, 64, (32, 32), (3, 3)), devices=("cuda",)),
    Case("recurrent", "5×32, 1,024 steps, batch 32", *_recurrent(5, 32, 32, 1024, 1), devices=("cuda",)),
    Case("recurrent", "5×32, 1,024 steps, 6 lags", *_recurrent(5, 32, 32, 1024, 6), devices=("cuda",)),
    Case("recurrent", "5×32, 1,024 steps, 256 lags", *_recurrent(5, 32, 32, 1024, 256), devices=("cuda",)),
]

# The authors' table, in microseconds (its heading says milliseconds): forward and backward, CPU float64, GPU float32.
AUTHORS = {
    ("dense small", "cpu"): (22.1, 17.6),
    ("dense small", "cuda"): (806.2, 936.6),
    ("dense medium", "cpu"): (224.3, 181.9),
    ("dense medium", "cuda"): (782.6, 883.1),
    ("convolution small", "cpu"): (100.6, 93.4),
    ("convolution small", "cuda"): (1056.7, 1131.6),
    ("convolution medium", "cpu"): (29504.0, 28878.0),
    ("convolution medium", "cuda"): (2054.3, 2252.9),
    ("recurrent small", "cpu"): (365.2, 334.8),
    ("recurrent small", "cuda"): (4427.4, 4542.2),
    ("recurrent medium", "cpu"): (41184.0, 40932.0),
    ("recurrent medium", "cuda"): (7058.7, 7118.5),
}
