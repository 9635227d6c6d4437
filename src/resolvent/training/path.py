"""One training along a path of growing penalties, on which a machine loses one part after the other."""

import os
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from torch import Tensor

from ..machines.structured import StructuredMachine
from ..sharing.load import load
from ..space.connections import selected
from ..space.lasso import GroupLasso
from ..space.made import in_one_layout, packed
from ..space.penalty import By
from ..space.simple import simplified
from .fit import Rows, Training, load_checkpoint
from .network import Model

FIRST, GROWTH, LAST = 1e-3, 1.2, 1e3
"""The penalties. A group whose root mean squared gradient exceeds the penalty stays."""
STEPS = 150  # at each penalty, or one epoch
KEPT = 0.75  # how many of the weights of the machine kept last the next one has, at most


def path(
    network: Model,
    train: Rows,
    folder: Path,
    *,
    by: By,
    lr: float,
    batch_size: int,
    seed: int,
    device: str,
    image: bool,
    bar: bool,
) -> Iterator[Any]:
    """Machines along the path, each with fewer weights than the one before, as long as inputs reach outputs.

    The folder keeps them, and after each penalty all that the path needs to go on.
    """
    model = Model(packed(network.machine).requires_grad_(True)).to(device)
    machine: Any = model.machine
    training, optimizer = Training(model, lr, 1), GroupLasso(machine, lr, by)
    at: dict[str, Any] = dict(penalty=FIRST, epoch=0, kept=0, weights=machine.system.entries)
    last = folder / "path.ckpt"
    if last.is_file():
        saved = load_checkpoint(last)
        at = saved["at"]
        machine.load_state_dict(saved["machine"])
        optimizer.load_state_dict(saved["optimizer"])
    for i in range(at["kept"]):
        yield load(folder / f"kept-{i}")
    epochs = ceil(STEPS * batch_size / max(1, len(train)))
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    while at["penalty"] < LAST:
        with Progress(*columns, transient=True, disable=not bar) as progress:
            task = progress.add_task("")
            for _ in range(epochs):
                rest = f"{at['weights'] / network.machine.system.entries:.1%} of the weights"
                progress.update(task, description=f"path, penalty {at['penalty']:.2g}, epoch {at['epoch'] + 1}, {rest}")
                order = torch.Generator().manual_seed(seed * 1_000_003 + at["epoch"])  # by seed and epoch
                for rows in torch.randperm(len(train), generator=order).split(batch_size):
                    optimizer.zero_grad()
                    inputs, targets = train.inputs[rows], train.targets[rows]
                    training.loss((inputs.to(device), targets.to(device))).backward()
                    optimizer.step(penalty=at["penalty"])
                at["epoch"] += 1
        weights = reduced(machine, image)[0].system.entries
        if not weights:
            return
        at["penalty"] *= GROWTH
        new = weights <= KEPT * at["weights"]
        if new:
            machine.save(folder / f"kept-{at['kept']}")
            at |= dict(kept=at["kept"] + 1, weights=weights)
        folder.mkdir(parents=True, exist_ok=True)
        state = dict(at=at, machine=machine.state_dict(), optimizer=optimizer.state_dict())
        torch.save(state, f"{last}.new")
        os.replace(f"{last}.new", last)
        if new:
            yield load(folder / f"kept-{at['kept'] - 1}")


def reduced(machine: StructuredMachine, image: bool) -> tuple[Any, Tensor]:
    """The machine without what it does not need, and which of its inputs it reads; of an image, all channels stay."""
    small = simplified(machine)
    inputs, total = small.partition.sizes[0], small.partition.total
    used = (in_one_layout(small) != 0).any(-1).any(1).any(0)[:inputs].cpu()
    if image or used.all() or not used.any():
        return small, torch.ones_like(used)
    return selected(small, torch.cat([used, torch.ones(total - inputs, dtype=torch.bool)])), used
