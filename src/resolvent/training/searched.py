"""What a search found: each machine beside the others, and the page that shows them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from .. import plot
from ..machines.structured import StructuredMachine
from ..pages.write import write_page
from .measure import number
from .preprocessing import Preprocessing
from .report import pictures, said, summary
from .split import Split


class Candidate(NamedTuple):
    """A machine, or a linear model, measured on rows it was not trained on."""

    name: str
    machine: Any
    split: Split
    arithmetic: int  # for a row, position or step
    parameters: int
    weights: int
    scores: dict[str, dict[str, float]]
    error: float  # on the validation rows, what networks are trained on: cross entropy, or the squared error
    error_spread: float  # its standard error
    epochs: int
    survivors: Mapping[str, str] = {}

    @property
    def kind(self) -> str:
        """What it is a point of, in a picture."""
        return self.name.split(" ")[0] if self.name[-1].isdigit() else self.name

    def score(self, part: str = "test") -> float:
        scores = self.scores[part]
        return scores["accuracy"] if "accuracy" in scores else scores["r2"]

    def row(self) -> dict[str, Any]:
        """As plain data."""
        row = dict(name=self.name, weights=self.weights, arithmetic=self.arithmetic, epochs=self.epochs)
        return row | dict(error=self.error, error_spread=self.error_spread, **self.scores)

    def verdict(self, candidates: Sequence["Candidate"], chosen: "Candidate", by: str) -> str:
        """What was found, beside what else there is, and where the search did not help."""
        full, sequential, linear, *others = candidates
        key = "accuracy" if "accuracy" in self.scores["test"] else "R²"

        def said(candidate: Candidate) -> str:
            value = candidate.score()
            return f"{value:.1%}" if key == "accuracy" else f"{value:.3f}"

        size = f"{self.weights:,} of {full.weights:,} weights ({_share(self.weights, full.weights)})"
        beside = (
            f"{key} {said(self)} on the test rows, the full machine {said(full)}, the sequential network "
            f"{said(sequential)}, {linear.name} ({linear.weights:,} weights) {said(linear)}"
        )
        if self.name != chosen.name:
            return f"{self.name.capitalize()} of a search by {by}, which found {chosen.name}: {size}; {beside}."
        text = f"Searched by {by}, {size} are enough: {beside}"
        if self.name == full.name:
            text = f"Searched by {by}, nothing smaller is as good as the full machine: {beside}"
        chance = next((c for c in others if c.name == self.name.replace("point", "random") != self.name), None)
        text += "." if chance is None else f", a random choice of {chance.weights:,} weights {said(chance)}."
        if chance is not None and chance.error <= self.error:
            text += " The random choice is as good on the validation rows."
        if linear.error <= self.error + self.error_spread:
            how = "better" if linear.error < self.error else "as good, within a standard error"
            text += f" On the validation rows, {linear.name} is {how}."
        return text


def describe(before: Preprocessing, after: Preprocessing) -> str:
    """Which inputs are left: of a table by name, of an image by number."""
    names = [column.name for column in after.columns]
    if before.image:
        return f"{after.features} of {before.features} pixels" if not after.image else "the whole image"
    gone = len(before.columns) - len(names)
    listed = ", ".join(names[:30]) + (f" and {len(names) - 30} more" if len(names) > 30 else "")
    return f"{listed} ({len(names)} of {len(before.columns)} columns)" if gone else f"all: {listed}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g} %"


def candidates_table(candidates: Sequence[Mapping[str, Any]], chosen: str) -> list[list[str]]:
    """Of the rows of all candidates, as text, with a mark at the one that was chosen."""
    measures = [*candidates[0]["test"]]
    key = "accuracy" if "accuracy" in measures else "r2"
    measures.sort(key=lambda name: name != key)
    full = candidates[0]["weights"]
    head = ["", "weights", "of full", f"validation {key}", *(f"test {m.replace('_', ' ')}" for m in measures)]

    def cell(name: str, value: float) -> str:
        return f"{value:.1%}" if name == "accuracy" else f"{value:.3f}" if name == "r2" else number(value)

    rows = []
    for c in candidates:
        name = f"→ {c['name']}" if c["name"] == chosen else c["name"]
        size = f"{c['weights']:,}", _share(c["weights"], full)
        rows.append([name, *size, cell(key, c["validation"][key]), *(cell(m, c["test"][m]) for m in measures)])
    return [head, *rows]


def curve(candidates: Sequence[Candidate], chosen: Candidate) -> Figure:
    """The validation score against the arithmetic, of all that was measured."""
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    axes = figure.subplots()
    marks = {"point": ("tab:blue", "o-"), "random": ("0.6", "x")}
    others = iter([("tab:orange", "s"), ("tab:green", "^"), ("tab:red", "D")])
    for kind in dict.fromkeys(c.kind for c in candidates):
        color, style = marks.get(kind) or next(others)
        members = [c for c in candidates if c.kind == kind]
        label = {"point": "searched", "random": "chosen at random"}.get(kind, kind)
        x, y = [c.arithmetic / 2 for c in members], [c.score("validation") for c in members]
        axes.plot(x, y, style, color=color, label=label, markersize=6, linewidth=1.2)
    axes.plot(
        [chosen.arithmetic / 2], [chosen.score("validation")], "o", color="black", markersize=13, fillstyle="none"
    )
    scores = sorted(c.score("validation") for c in candidates)
    floor = min(c.score("validation") for c in candidates if c.kind != "random")
    axes.set_ylim(max(scores[0], floor - 0.2) - 0.01, scores[-1] + 0.02)
    axes.set_xscale("log")
    name = "accuracy" if "accuracy" in chosen.scores["validation"] else "R²"
    axes.set(xlabel="multiply-adds", ylabel=f"{name} on the validation rows")
    figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=5)
    return figure


def write_search(
    folder: Path,
    chosen: Candidate,
    candidates: Sequence[Candidate],
    metrics: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> None:
    """All pictures as SVG, and `search.html`."""
    machine: StructuredMachine = chosen.machine
    figures = {
        "curve": (
            curve(candidates, chosen),
            "What each machine is worth, and what it costs; the ring is the one found.",
        ),
        "connections": (
            plot.connections(machine),
            "Which block feeds which in the machine found, by the norm of the weights; grey where one could.",
        ),
        **pictures(machine),
    }
    write_page(
        folder / "search.html",
        figures,
        metrics=metrics,
        survivors=chosen.survivors,
        table=candidates_table(metrics["search"]["candidates"], chosen.name),
        settings=said(settings),
        machine=summary(machine),
        points={c.name: c.survivors for c in candidates if c.kind == "point"},
    )
