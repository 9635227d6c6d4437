"""`search`: along a path of penalties, the machines of less and less arithmetic, each tuned, measured and saved."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.special import log_softmax
from torch import Tensor

from ..machines.structured import StructuredMachine
from ..space.made import unpacked
from ..space.penalty import groups_of
from ..space.simple import surviving
from .data import Data, read
from .fit import Diverged, Rows, Training, fit
from .linear import linear
from .measure import measure, naive
from .network import Model, arithmetic, parameters_read, sequential_like
from .path import path, reduced
from .run import PREPROCESSING, Trained, announce, network_of, outputs_of
from .searched import Candidate, describe, write_search
from .settings import (
    METRICS,
    Settings,
    check_resumed,
    choose,
    forget,
    resumed,
    why_taken,
    write_json,
    write_settings,
)
from .split import Split, divide, narrowed, rows_of

MOST_POINTS = 16
WORSE = 3.0  # standard errors behind the best, at which a point is no longer worth going on from
LAGS = 12


def search(
    data: str | os.PathLike | pd.DataFrame | None = None,
    *,
    target: str | None = None,
    by: str | None = None,
    task: str | None = None,
    machine: str | None = None,
    sizes: Sequence[int] | None = None,
    activation: str | None = None,
    lags: int | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    device: str | None = None,
    out: str | os.PathLike | None = None,
    resume: bool = False,
    progress: bool = False,
) -> Trained:
    """Search the space of machines for those that do with less: fewer units, edges or lags.

    A machine with all connections is trained, then a penalty grows and takes one group of weights after the other.
    Machines along this path are tuned without the penalty and measured, beside the full machine, random ones of as many
    weights, the classical network and a linear model. The one that is found has the least arithmetic of those whose
    validation error is within a standard error of the best; `points` are all along the path. `by` is "units" (single
    inputs and hidden units), "edges" (between blocks) or "lags"; all else is as in `train`.
    """
    given: dict[str, Any] = dict(target=target, task=task, machine=machine, activation=activation, lags=lags, lr=lr)
    given |= dict(epochs=epochs, batch_size=batch_size, seed=seed, device=device, by=by)
    given |= dict(sizes=None if sizes is None else tuple(sizes))
    folder = None if out is None else Path(out)
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ValueError(f"a search runs in one process, here are WORLD_SIZE={os.environ['WORLD_SIZE']}")
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):  # the caller's stays as it is
        if resume:
            data, given = resumed(folder, data, given)
        data = "digits" if data is None else data
        learned = read(data, given["target"], given["task"])
        settings = _chosen(given, learned, "a data frame" if isinstance(data, pd.DataFrame) else os.fspath(data))
        if resume and folder is not None:
            check_resumed(folder, settings)
        split = divide(learned, settings)
        full = network_of(learned, settings, split, settings.seed, sequential=False)
        taken = None if folder is None or resume else why_taken(folder)
        if taken:
            raise ValueError(taken)
        if progress:
            announce(learned, settings, full.machine)
        if folder is not None:
            try:
                return _Search(learned, settings, split, folder, progress).run(full, keep=True)
            except Diverged:
                forget(folder)
                raise
        with tempfile.TemporaryDirectory(prefix="resolvent-") as temporary:
            return _Search(learned, settings, split, Path(temporary), progress).run(full, keep=False)


def _chosen(given: dict[str, Any], data: Data, name: str) -> Settings:
    """Settings for a search: of a machine that is larger than it need be."""
    defaults: dict[str, Any] = dict(connections=None, seeds=None)
    series = data.task == "forecast"
    if series and given["lags"] is None:
        defaults["lags"] = min(LAGS, len(data.target) // 10)
    kind = given["machine"] or choose(given | defaults, data, name).machine
    by = given["by"] or ("lags" if kind == "recurrent" else "units")
    if by not in ("units", "edges", "lags"):
        raise ValueError(f"by={by!r} is unknown: use 'units', 'edges' or 'lags'")
    if by == "lags" and kind != "recurrent":
        raise ValueError(f"by='lags' is for recurrent machines, this one is {kind}: use 'units' or 'edges'")
    if kind == "dense" and given["sizes"] is None:
        defaults["sizes"] = (16,) * 16 if by == "edges" else (64,) * 3
    return replace(choose(given | defaults, data, name), by=by)


class _Search:
    """What all networks of a search are trained and measured with."""

    def __init__(self, data: Data, settings: Settings, split: Split, folder: Path, progress: bool):
        self.data, self.settings, self.split, self.folder, self.progress = data, settings, split, folder, progress
        self.image = settings.machine == "conv" and bool(split.preprocessing.image)

    def run(self, full: Model, keep: bool) -> Trained:
        settings, split = self.settings, self.split
        write_settings(self.folder, settings)
        candidates = [self.trained("full machine", full, split, "full")]
        torch.manual_seed(settings.seed)  # whether the full one was trained now or in a run before
        classical = sequential_like(full.machine)
        candidates.append(self.trained("sequential network", classical, split, "sequential"))
        candidates.append(self.linear())
        options: Any = dict(by=settings.by, lr=settings.lr, batch_size=settings.batch_size, seed=settings.seed)
        options |= dict(device=settings.device, image=self.image, bar=self.progress)
        found, worse = [], 0
        rows = rows_of(split, "train", settings.lags or 0)
        for i, large in enumerate(path(full, rows, self.folder / "checkpoints" / "path", **options)):
            point = self.tuned(f"point {i + 1}", large, f"point-{i}")
            found.append(point)
            chance = self.at_random(full.machine, point, i)
            candidates += [point] if chance is None else [point, chance]
            best = min((candidates[0], *found), key=lambda c: c.error)
            worse = worse + 1 if point.error > best.error + WORSE * best.error_spread else 0
            if worse == 2 or len(found) == MOST_POINTS:
                break
        chosen = self.smallest([candidates[0], *found])
        metrics = self.metrics(candidates, chosen, chosen)
        if keep:
            for i, point in enumerate(found):
                self.save(point, candidates, chosen, self.folder / "points" / f"{i + 1:02}")
            write_search(self.folder, chosen, candidates, metrics, asdict(settings))
            chosen.machine.save(self.folder)
            write_json(self.folder / PREPROCESSING, chosen.split.preprocessing.to_json())
            write_json(self.folder / METRICS, metrics)  # the last one: with it the search is finished
        points = tuple(
            Trained(
                c.machine,
                self.metrics(candidates, chosen, c),
                c.split.preprocessing,
                self.folder / "points" / f"{i:02}" if keep else None,
            )
            for i, c in enumerate(found, 1)
        )
        kept = self.folder if keep else None
        return Trained(chosen.machine, metrics, chosen.split.preprocessing, kept, points)

    def smallest(self, candidates: Sequence[Candidate]) -> Candidate:
        """The least arithmetic within a standard error of the best."""
        best = min(candidates, key=lambda c: c.error)
        good = [c for c in candidates if c.error <= best.error + best.error_spread]
        return min(good, key=lambda c: c.arithmetic)

    def trained(self, name: str, network: Model, split: Split, place: str) -> Candidate:
        """The network, fitted, or as it came if that is better on the validation rows."""
        settings, before = self.settings, deepcopy(network.state_dict())
        rows, checked = rows_of(split, "train", settings.lags or 0), rows_of(split, "validation")
        untuned = _loss(network, checked.inputs, checked.targets)
        try:
            history = self.fitted(name, network, rows, checked, place)
        except Diverged:
            if place == "full":
                raise
            history = []  # what others are compared with ends no search
        if not history or min(epoch["val_loss"] for epoch in history) > untuned:
            network.load_state_dict(before)
        outputs = {part: outputs_of(network, split, part) for part in ("validation", "test")}
        machine, epochs = network.machine.requires_grad_(False), len(history)
        return self.measured(name, outputs, split, machine, arithmetic(machine), parameters_read(machine), epochs)

    def fitted(self, name: str, network: Model, rows: Rows, checked: Rows, place: str) -> list[dict[str, float]]:
        settings = self.settings
        return fit(
            network,
            rows,
            checked,
            self.folder / "checkpoints" / place,
            epochs=settings.epochs,
            lr=settings.lr,
            batch_size=settings.batch_size,
            seed=settings.seed,
            device=settings.device,
            title=name,
            progress=self.progress,
        )

    def tuned(self, name: str, large: StructuredMachine, place: str) -> Candidate:
        """A machine of the path without what it does not need, inputs included."""
        small, used = reduced(large, self.image)
        split = self.split if used.all() else narrowed(self.split, used)
        candidate = self.trained(name, Model(small.requires_grad_(True)), split, place)
        return candidate._replace(survivors=self.survivors(large, small, split))

    def survivors(self, large: StructuredMachine, small: StructuredMachine, split: Split) -> dict[str, str]:
        """What a point still has of the full machine."""
        alive = surviving(large)[0].split(large.partition.sizes)
        hidden = {i: part for i, part in enumerate(alive[1:-1], 1) if part.any()}
        whole = [str(i) for i, part in hidden.items() if part.all()]
        blocks = [f"all of block{'s' * (len(whole) > 1)} {', '.join(whole)}"] if whole else []
        blocks += [f"{int(part.sum())} of {len(part)} in block {i}" for i, part in hidden.items() if not part.all()]
        inputs = describe(self.split.preprocessing, split.preprocessing)
        left = {"inputs": inputs, "hidden units": ", ".join(blocks) or "none"}
        matrices = torch.tensor(small.connections.matrices)
        left["edges between blocks"] = f"{int(matrices.sum())} of {int(torch.tensor(large.connections.matrices).sum())}"
        if large.connections.lags:
            lags = [lag for lag, matrix in enumerate(matrices) if matrix.any()]
            steps = ", ".join(str(lag + 1) for lag in lags)
            left["lags"] = (
                f"{', '.join(map(str, lags))} of 0 to {large.connections.lags}: {steps} steps before the next"
            )
        return left

    def at_random(self, full: StructuredMachine, point: Candidate, i: int) -> Candidate | None:
        """Groups that are drawn, of the trained machine, as many as leave no more weights than the point has.

        Of ten draws, the one that has most weights.
        """
        (groups, shape), weights = groups_of(full.system, self.settings.by), point.weights
        generator = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + i)
        most, drawn = 0, None
        for _ in range(10):
            order = torch.randperm(shape.numel(), generator=generator)
            low, high = 0, len(order)  # removing `high` groups leaves few enough
            while high - low > 1:
                middle = (low + high) // 2
                small, _ = reduced(_without(full, groups, order[:middle]), self.image)
                low, high = (low, middle) if small.system.entries <= weights else (middle, high)
            large = _without(full, groups, order[:high])
            if reduced(large, self.image)[0].system.entries > most:
                most, drawn = reduced(large, self.image)[0].system.entries, large
        return None if drawn is None else self.tuned(f"random {i + 1}", drawn, f"random-{i}")

    def linear(self) -> Candidate:
        model = linear(self.split, self.settings.lags or 0)
        return self.measured(model.name, model.outputs, self.split, None, 2 * model.weights, model.weights, 0)

    def measured(
        self,
        name: str,
        outputs: Mapping[str, np.ndarray],
        split: Split,
        machine: Any,
        cost: int,
        parameters: int,
        epochs: int,
    ) -> Candidate:
        scores = {}
        for part in ("validation", "test"):
            truth = self.data.target.iloc[split.rows[part]]
            scores[part] = measure(split.preprocessing, truth, outputs[part])
        truth, given = self.data.target.iloc[split.rows["validation"]], outputs["validation"]
        if split.preprocessing.classes is None:
            errors = (split.preprocessing.goals(truth)[:, 0] - given[:, 0]) ** 2
        else:
            right = split.preprocessing.goals(truth)[:, None]
            errors = -np.take_along_axis(log_softmax(given.astype(float), 1), right, 1)
        spread = float(errors.std(ddof=1) / len(errors) ** 0.5)
        weights = 0 if machine is None else machine.system.entries
        return Candidate(
            name, machine, split, cost, parameters, weights or parameters, scores, float(errors.mean()), spread, epochs
        )

    def metrics(self, candidates: Sequence[Candidate], chosen: Candidate, point: Candidate) -> dict[str, Any]:
        """Those of a run, for one machine of the search, with a table of all."""
        data, split = self.data, self.split
        metrics: dict[str, Any] = dict(data=self.settings.data, task=data.task, target=str(data.target.name))
        metrics |= dict(rows={part: len(rows) for part, rows in split.rows.items()}, notes=list(data.notes))
        for name, candidate in (("machine", point), ("sequential", candidates[1])):
            run = dict(seed=self.settings.seed, epochs=candidate.epochs, **candidate.scores["test"])
            sizes = list(candidate.machine.partition.sizes)
            metrics[name] = dict(sizes=sizes, parameters=candidate.parameters, seeds=[run])
        metrics["naive"] = naive(split.preprocessing, data.target, split.rows)
        rows = [c.row() for c in candidates]
        metrics["search"] = dict(by=self.settings.by, chosen=chosen.name, survivors=point.survivors, candidates=rows)
        metrics["verdict"] = point.verdict(candidates, chosen, self.settings.by or "")
        return metrics

    def save(self, point: Candidate, candidates: Sequence[Candidate], chosen: Candidate, folder: Path) -> None:
        """A point as a run of its own, with which `show`, `predict` and `export` do what they do with any."""
        point.machine.save(folder)
        write_json(folder / PREPROCESSING, point.split.preprocessing.to_json())
        write_json(folder / METRICS, self.metrics(candidates, chosen, point))


def _without(full: StructuredMachine, groups: Tensor, gone: Tensor) -> StructuredMachine:
    """The machine in which these groups of weights are zero."""
    large = unpacked(full)
    zero = large.system.places()[torch.isin(groups, gone)]
    with torch.no_grad():
        large.weight.view(-1)[zero] = 0
    return large


def _loss(network: Model, inputs: Tensor, targets: Tensor) -> float:
    with torch.no_grad():
        return Training(network, 0.0, 1).loss((inputs, targets)).item()
