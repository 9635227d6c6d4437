"""Commands for one's own data: train, search, predict, show and export.

Each imports what it needs by itself: all together that takes seconds, for which `--help` is not to wait.
"""

import time
import webbrowser
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from ..files.folder import replace_text
from ..pages.write import write_figure
from .command import app, console, example, folder_for, sizes_of

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
DataName = Annotated[
    str | None,
    typer.Argument(
        metavar="[DATA]", show_default="digits", help="digits, diabetes, sunspots, or a CSV or Parquet file."
    ),
]
Target = Annotated[str | None, typer.Option(help="The column to learn, of a file.")]
Task = Annotated[
    Literal["classification", "regression", "forecast"] | None, typer.Option(help="Inferred from the target.")
]
Kind = Annotated[
    Literal["dense", "conv", "recurrent"] | None,
    typer.Option(help="Inferred: dense for tables, conv for images, recurrent for series."),
]
Sigma = Annotated[str | None, typer.Option(show_default="relu, of series tanh", help="The σ of these blocks, by name.")]
Rate = Annotated[float | None, typer.Option(show_default="0.003", help="Adam's learning rate at the start.")]
Rows = Annotated[int | None, typer.Option(show_default="32", help="Rows of one step.")]
Device = Annotated[Literal["auto", "cpu", "cuda"] | None, typer.Option(show_default="auto")]


@app.command(epilog=example("resolvent train data.csv --target price --sizes 64,64,64 --seeds 5"))
def train(
    data: DataName = None,
    target: Target = None,
    task: Task = None,
    machine: Kind = None,
    sizes: Annotated[str | None, typer.Option(metavar="N,N,…", help="The blocks between inputs and outputs.")] = None,
    activation: Sigma = None,
    connections: Annotated[
        Literal["all", "sequential"] | None, typer.Option(show_default="all", help="All shortcuts, or none.")
    ] = None,
    lags: Annotated[int | None, typer.Option(show_default="3", help="How far back a series is read at once.")] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            show_default="40 to 200, by the data", help="At most; training stops when validation stops improving."
        ),
    ] = None,
    lr: Rate = None,
    batch_size: Rows = None,
    seed: Annotated[
        int | None, typer.Option(show_default="0", help="Of the split and of the first initialisation.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(show_default="1", help="Train from so many seeds, and give the spread.")
    ] = None,
    device: Device = None,
    out: Annotated[
        Path | None, typer.Option(show_default="runs/NAME, with a number if taken", help="The run's folder.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
) -> None:
    """Train a machine, compare it with the classical network of as many parameters, and write a report."""
    from .. import training

    blocks = None if sizes is None else sizes_of(sizes)
    start = time.perf_counter()
    with training.processes():
        folder = training.same_for_all(out or folder_for(data or "digits", resume))
        try:
            trained = training.train(
                data,
                target=target,
                task=task,
                machine=machine,
                sizes=blocks,
                activation=activation,
                connections=connections,
                lags=lags,
                epochs=epochs,
                lr=lr,
                batch_size=batch_size,
                seed=seed,
                seeds=seeds,
                device=device,
                out=folder,
                resume=resume,
                progress=True,
            )
        except KeyboardInterrupt:
            if training.is_unfinished(folder):
                console.print(f"stopped; go on with: resolvent train --resume --out {folder}", soft_wrap=True)
            raise typer.Exit(130) from None
    if training.rank() == 0:
        _print_scores(trained.metrics)
        console.print(trained.metrics["verdict"])
        seconds = time.perf_counter() - start
        console.print(f"{seconds:.0f} s; report in {folder / 'report.html'}", soft_wrap=True, highlight=False)


@app.command(epilog=example("resolvent search data.csv --target price --by units"))
def search(
    data: DataName = None,
    target: Target = None,
    by: Annotated[
        Literal["units", "edges", "lags"] | None,
        typer.Option(
            show_default="units, of series lags",
            help="What is taken away: single inputs and hidden units, whole edges between blocks, or lags.",
        ),
    ] = None,
    task: Task = None,
    machine: Kind = None,
    sizes: Annotated[str | None, typer.Option(metavar="N,N,…", help="The blocks of the full machine.")] = None,
    activation: Sigma = None,
    lags: Annotated[int | None, typer.Option(show_default="12", help="The longest lag to begin with.")] = None,
    epochs: Annotated[
        int | None, typer.Option(show_default="40 to 200, by the data", help="At most, of each tuning.")
    ] = None,
    lr: Rate = None,
    batch_size: Rows = None,
    seed: Annotated[int | None, typer.Option(show_default="0", help="Of the split and the initialisation.")] = None,
    device: Device = None,
    out: Annotated[
        Path | None, typer.Option(show_default="runs/NAME-search, with a number if taken", help="The run's folder.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a search that was stopped.")] = False,
) -> None:
    """Find how few inputs, units, edges or lags are enough, and write a report and every machine on the way.

    One training under a growing penalty takes a large machine apart. Beside what is left of it stand the full machine,
    random choices of as many weights, the classical network and a linear model.
    """
    from .. import training

    blocks = None if sizes is None else sizes_of(sizes)
    start = time.perf_counter()
    folder = out or folder_for(f"{Path(data or 'digits').stem}-search", resume)
    given: Any = dict(target=target, by=by, task=task, machine=machine, sizes=blocks, activation=activation, lags=lags)
    given |= dict(epochs=epochs, lr=lr, batch_size=batch_size, seed=seed, device=device)
    try:
        found = training.search(data, **given, out=folder, resume=resume, progress=True)
    except KeyboardInterrupt:
        if training.is_unfinished(folder):
            console.print(f"stopped; go on with: resolvent search --resume --out {folder}", soft_wrap=True)
        raise typer.Exit(130) from None
    searched = found.metrics["search"]
    rows = training.candidates_table(searched["candidates"], searched["chosen"])
    _print_rows([row[:5] for row in rows], f"searched by {found.metrics['search']['by']}")
    for name, left in found.metrics["search"]["survivors"].items():
        console.print(f"{name}: {left}", soft_wrap=True)
    console.print(found.metrics["verdict"])
    seconds = time.perf_counter() - start
    console.print(f"{seconds:.0f} s; report in {folder / 'search.html'}", soft_wrap=True, highlight=False)


@app.command(epilog=example("resolvent predict runs/digits new.csv --out predictions.csv"))
def predict(
    run: Run,
    data: Annotated[str, typer.Argument(metavar="DATA", help="A CSV or Parquet file, or an embedded set.")],
    out: Annotated[
        Path | None, typer.Option(show_default="predictions.csv in the run", help="The CSV file to write.")
    ] = None,
) -> None:
    """Write a run's predictions for new rows as CSV; columns may be in any order.

    Of a series, each row is predicted from the rows before it, whose target must be there; one row more is what comes
    next.
    """
    from .. import training

    trained = training.open_run(run)
    frame = training.read(data).inputs if data in training.EMBEDDED else training.table(data)
    if not len(frame):
        raise ValueError(f"{data} has no rows")
    path = out or run / "predictions.csv"
    if path.is_dir() or (path.exists() and data not in training.EMBEDDED and path.samefile(data)):
        raise ValueError(f"--out {path} is a folder" if path.is_dir() else f"--out {path} is the data itself")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist")
    predicted = trained.predict(frame)
    replace_text(path, predicted.to_csv(index=False))
    console.print(f"{len(predicted):,} predictions of {trained.preprocessing.target} in {path}", soft_wrap=True)


@app.command(epilog=example("resolvent show runs/digits --pictures ."))
def show(
    run: Run,
    pictures: Annotated[Path | None, typer.Option(help="Write the pictures of the machine to this folder.")] = None,
    open_report: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
) -> None:
    """Print a run's architecture, depth, parameters, arithmetic, strongest shortcuts and measures."""
    from .. import training

    trained = training.open_run(run)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in training.summary(trained.machine).items():
        table.add_row(name, Text(str(value)))
    console.print(table)
    _print_scores(trained.metrics)
    console.print(trained.metrics["verdict"])
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
        for name, (figure, _) in training.pictures(trained.machine).items():
            write_figure(pictures / f"{name}.svg", figure)
            console.print(f"written to {pictures / name}.svg", soft_wrap=True)
    if open_report and not webbrowser.open((run / "report.html").resolve().as_uri()):
        raise OSError(f"no browser could be opened for {run / 'report.html'}")


@app.command(epilog=example("resolvent export runs/digits --onnx digits.onnx"))
def export(
    run: Run,
    onnx: Annotated[Path, typer.Option(help="The file to write.")],
) -> None:
    """Write a run's network as an ONNX file, from preprocessed inputs to predictions."""
    from .. import training

    trained = training.open_run(run)
    if not onnx.parent.is_dir():
        raise FileNotFoundError(f"the folder {onnx.parent} does not exist")
    trained.onnx(onnx)
    console.print(f"written to {onnx}; its input is what {run / 'preprocessing.json'} makes of a row", soft_wrap=True)


def _print_scores(metrics: dict) -> None:
    from ..training import scores

    _print_rows(scores(metrics), f"{metrics['target']}, {metrics['rows']['test']} test rows")


def _print_rows(rows: list[list[str]], title: str) -> None:
    head, *rows = rows
    table = Table(title=Text(title), title_justify="left")
    for name in head:
        table.add_column(name, justify="right" if name else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
