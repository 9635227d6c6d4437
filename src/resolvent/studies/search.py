"""What a search finds, over several seeds: how few weights are as good as all, and where it does not help.

Each seed splits the rows anew where they are no series. "at most 5 %" is the largest machine along the path with no
more of the full machine's weights: what the path is worth there, whether it was chosen or not.
"""

import csv
import io
import platform
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import resolvent as rv

from ..files.folder import replace_text

CASES: tuple[dict[str, Any], ...] = (
    dict(data="sunspots", by="edges"),
    dict(data="sunspots", by="lags"),
    dict(data="digits", machine="dense", by="edges"),
    dict(data="digits", machine="dense", by="units"),
)


def rows_of(case: dict[str, Any], seed: int) -> list[dict[str, Any]]:
    """The candidates that say something, on the test rows."""
    found = rv.search(**case, seed=seed).metrics["search"]
    candidates = found["candidates"]
    full, sequential, linear, *others = candidates
    chosen = next(c for c in candidates if c["name"] == found["chosen"])
    few = [c for c in others if c["name"].startswith("point") and 20 * c["weights"] <= full["weights"]]
    named = {"full machine": full, "sequential network": sequential, "linear model": linear, "chosen": chosen}
    named |= {"at most 5 %": max(few, key=lambda c: c["weights"])} if few else {}
    drawn = [c for c in others if c["name"] == chosen["name"].replace("point", "random")]
    named |= {"as many at random": drawn[0]} if drawn and drawn[0] is not chosen else {}
    key = "accuracy" if "accuracy" in full["test"] else "r2"
    rows = []
    for name, c in named.items():
        row = dict(data=case["data"], by=case["by"], seed=seed, machine=name, weights=c["weights"], measure=key)
        row |= dict(test=round(c["test"][key], 4), validation=round(c["validation"][key], 4))
        rows.append(row | (found["survivors"] if name == "chosen" else {}))
    return rows


def run(out: Path, *, seeds: int = 5) -> Path:
    """Search, print a table, and write the CSV file whose path is returned."""
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    where = dict(
        device=f"{torch.get_num_threads()}-core CPU", python=platform.python_version(), torch=torch.__version__
    )
    rows: list[dict[str, Any]] = []
    out.mkdir(parents=True, exist_ok=True)
    path, console = out / "search.csv", Console()
    for case in CASES:
        for seed in range(seeds):
            with console.status(f"{case['data']} by {case['by']}, seed {seed}"):
                rows += [row | where for row in rows_of(case, seed)]
            replace_text(path, _text(rows))  # at once, so that a run cut short leaves what it had
    table = Table("data", "by", "machine", "weights", "worst", "median", "best", title=f"{seeds} seeds, test rows")
    for key in dict.fromkeys((r["data"], r["by"], r["machine"]) for r in rows):
        of_key = [r for r in rows if (r["data"], r["by"], r["machine"]) == key]
        scores = [r["test"] for r in of_key]
        weights = mean(r["weights"] for r in of_key)
        table.add_row(*key, f"{weights:,.0f}", *(f"{f(scores):.4g}" for f in (min, median, max)))
    console.print(table)
    return path


def _text(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
