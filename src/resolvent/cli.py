"""The command line: train on data, predict, show, export, measure, and reproduce the paper.

Each command imports what it needs by itself: all together that takes seconds, for which `--help` is not to wait.
"""

import logging
import os
import sys
import time
import warnings
import webbrowser
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .files.folder import replace_text
from .pages.write import write_figure

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
console = Console(markup=False, highlight=False)
study = typer.Typer(no_args_is_help=True, help="Experiments behind what the README says.")
app.add_typer(study, name="study")
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]


@app.callback()
def resolvent() -> None:
    """Neural networks as machines of finite depth: one command that trains one on your data."""


def _example(text: str) -> str:
    return f"Example: [bold]{text}[/bold]"


@app.command(epilog=_example("resolvent train data.csv --target price --sizes 64,64,64 --seeds 5"))
def train(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="[DATA]", show_default="digits", help="digits, diabetes, sunspots, or a CSV or Parquet file."
        ),
    ] = None,
    target: Annotated[str | None, typer.Option(help="The column to learn, of a file.")] = None,
    task: Annotated[
        Literal["classification", "regression", "forecast"] | None, typer.Option(help="Inferred from the target.")
    ] = None,
    machine: Annotated[
        Literal["dense", "conv", "recurrent"] | None,
        typer.Option(help="Inferred: dense for tables, conv for images, recurrent for series."),
    ] = None,
    sizes: Annotated[str | None, typer.Option(metavar="N,N,…", help="The blocks between inputs and outputs.")] = None,
    activation: Annotated[
        str | None, typer.Option(show_default="relu, of series tanh", help="The σ of these blocks, by name.")
    ] = None,
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
    lr: Annotated[float | None, typer.Option(show_default="0.003", help="Adam's learning rate at the start.")] = None,
    batch_size: Annotated[int | None, typer.Option(show_default="32", help="Rows of one step.")] = None,
    seed: Annotated[
        int | None, typer.Option(show_default="0", help="Of the split and of the first initialisation.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(show_default="1", help="Train from so many seeds, and give the spread.")
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"] | None, typer.Option(show_default="auto")] = None,
    out: Annotated[
        Path | None, typer.Option(show_default="runs/NAME, with a number if taken", help="The run's folder.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
) -> None:
    """Train a machine, compare it with the classical network of as many parameters, and write a report."""
    from . import training

    blocks = None if sizes is None else _sizes(sizes)
    start = time.perf_counter()
    with training.processes():
        folder = training.same_for_all(out or _folder(data or "digits", resume))
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


@app.command(epilog=_example("resolvent predict runs/digits new.csv --out predictions.csv"))
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
    from . import training

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


@app.command(epilog=_example("resolvent show runs/digits --pictures ."))
def show(
    run: Run,
    pictures: Annotated[Path | None, typer.Option(help="Write the pictures of the machine to this folder.")] = None,
    open_report: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
) -> None:
    """Print a run's architecture, depth, parameters, arithmetic, strongest shortcuts and measures."""
    from . import training

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


@app.command(epilog=_example("resolvent export runs/digits --onnx digits.onnx"))
def export(
    run: Run,
    onnx: Annotated[Path, typer.Option(help="The file to write.")],
) -> None:
    """Write a run's network as an ONNX file, from preprocessed inputs to predictions."""
    from . import training

    trained = training.open_run(run)
    if not onnx.parent.is_dir():
        raise FileNotFoundError(f"the folder {onnx.parent} does not exist")
    trained.onnx(onnx)
    console.print(f"written to {onnx}; its input is what {run / 'preprocessing.json'} makes of a row", soft_wrap=True)


@app.command(epilog=_example("resolvent bench --quick"))
def bench(
    device: Annotated[Literal["cpu", "cuda"], typer.Option()] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="The paper's rows, not compiled, within a minute.")] = False,
    compiled: Annotated[
        int, typer.Option("--compile", metavar="N", help="Compile loops of up to N blocks times steps; 0 for none.")
    ] = 100,
    large: Annotated[bool, typer.Option("--large", help="Only the larger cases.")] = False,
    only: Annotated[str, typer.Option(metavar="TEXT", help="Only cases with this text in their name.")] = "",
    same_thread: Annotated[
        bool, typer.Option("--same-thread", help="Backward passes in the calling thread, for all PyTorch programs.")
    ] = False,
    jets: Annotated[
        bool, typer.Option("--jets", help="Only losses with derivatives by the input; takes --quick, --only and --out.")
    ] = False,
    out: Annotated[Path, typer.Option(help="The folder for the CSV file and the figures.")] = Path("runs/benchmark"),
) -> None:
    """Measure machines against the programs a user would write, side by side.

    machine: through autograd; passes: by solve, dual and weight_cotangent; loop: a list of blocks and torch.cat; layer:
    one PyTorch layer of the same width; limit: one product with the same arithmetic. ratio: backward over forward.
    """
    from .studies import benchmark

    if jets:
        if device == "cuda" or large or same_thread:
            raise ValueError("--jets measures its own rows on the CPU: it takes --quick, --only and --out")
        console.print(f"written to {benchmark.run_jets(out, quick=quick, only=only)}", soft_wrap=True)
        return
    path = benchmark.run(
        out, device=device, quick=quick, compiled=compiled, large=large, only=only, same_thread=same_thread
    )
    console.print(f"written to {path}", soft_wrap=True)
    measured = {d: benchmark.read(out / f"{d}.csv") for d in ("cpu", "cuda") if (out / f"{d}.csv").is_file()}
    measured |= {device: benchmark.read(path)}
    for name, figure in zip(("runtimes", "ratios"), benchmark.figures(measured), strict=True):
        if figure.axes:
            write_figure(out / f"{name}.svg", figure)
            console.print(f"written to {out / name}.svg", soft_wrap=True)


@app.command(epilog=_example("resolvent paper --out runs/paper"))
def paper(
    out: Annotated[Path, typer.Option(help="The folder for the page and its figures.")] = Path("runs/paper"),
) -> None:
    """Reproduce every figure and table of the paper, and its examples, on one page."""
    from .studies.paper import reproduce

    console.print(f"written to {reproduce(out)}", soft_wrap=True)


@study.command("depth", epilog=_example("resolvent study depth --blocks 8,24 --seeds 5"))
def study_depth(
    blocks: Annotated[str, typer.Option(metavar="N,N,…", help="Numbers of hidden blocks.")] = "8,24,48",
    seeds: Annotated[int, typer.Option(help="Of splits and initialisations, from 0 on.")] = 3,
    epochs: Annotated[int, typer.Option(help="Of each training; none stops earlier.")] = 40,
    lr: Annotated[float, typer.Option(help="Adam's learning rate, constant.")] = 1e-3,
    out: Annotated[Path, typer.Option(help="The folder for depth.csv.")] = Path("runs/depth"),
) -> None:
    """Train machines with all shortcuts and classical networks of as many parameters, deeper and deeper.

    On scikit-learn's digits, all by one recipe. About five minutes on a CPU, in one thread.
    """
    from .studies import depth

    path = depth.run(out, blocks=_sizes(blocks, "--blocks", "8,24,48"), seeds=seeds, epochs=epochs, lr=lr)
    console.print(f"written to {path}", soft_wrap=True)


def _sizes(text: str, option: str = "--sizes", example: str = "64,64,64") -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise ValueError(f"{option} {text!r} must be whole numbers with commas between, as {example}") from None


def _folder(data: str, resume: bool) -> Path:
    """The next free folder for this data or, to go on, the last one that is not finished."""
    base = Path("runs") / Path(data).stem
    taken = [base, *(Path(f"{base}-{i}") for i in range(2, 10_000))]
    if not resume:
        return next(folder for folder in taken if not folder.exists())
    from .training import is_unfinished

    unfinished = [folder for folder in taken if is_unfinished(folder)]
    if not unfinished:
        raise ValueError(f"there is no unfinished run of {data} in runs: name its folder with --out")
    return unfinished[-1]


def _print_scores(metrics: dict) -> None:
    from .training import scores

    head, *rows = scores(metrics)
    table = Table(title=Text(f"{metrics['target']}, {metrics['rows']['test']} test rows"), title_justify="left")
    for name in head:
        table.add_column(name, justify="right" if name else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def run() -> None:
    """The command; what is wrong with the input is said in one line."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated")  # PyTorch's own, in ONNX export
    try:
        app()
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name is not None:
            raise  # to `main`, which knows what to install
        if os.environ.get("RANK", "0") == "0":
            print("error: " + " ".join(str(error).split()), file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
