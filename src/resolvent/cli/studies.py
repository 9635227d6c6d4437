"""Commands that measure the library, and reproduce what its pages say."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ..pages.write import write_figure
from .command import app, console, example, sizes_of

study = typer.Typer(no_args_is_help=True, help="Experiments behind what the README says.")
app.add_typer(study, name="study")


@app.command(epilog=example("resolvent bench --quick"))
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
    pruned: Annotated[
        bool, typer.Option("--pruned", help="Only what pruning and packing save; takes --quick, --only and --out.")
    ] = False,
    out: Annotated[Path, typer.Option(help="The folder for the CSV file and the figures.")] = Path("runs/benchmark"),
) -> None:
    """Measure machines against the programs a user would write, side by side.

    machine: through autograd; passes: by solve, dual and weight_cotangent; loop: a list of blocks and torch.cat; layer:
    one PyTorch layer of the same width; limit: one product with the same arithmetic. ratio: backward over forward.
    """
    from ..studies import benchmark

    if jets or pruned:
        name, run = ("--jets", benchmark.run_jets) if jets else ("--pruned", benchmark.run_pruned)
        if device == "cuda" or large or same_thread or (jets and pruned):
            raise ValueError(f"{name} measures its own rows on the CPU: it takes --quick, --only and --out")
        console.print(f"written to {run(out, quick=quick, only=only)}", soft_wrap=True)
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


@app.command(epilog=example("resolvent paper --out runs/paper"))
def paper(
    out: Annotated[Path, typer.Option(help="The folder for the page and its figures.")] = Path("runs/paper"),
) -> None:
    """Reproduce every figure and table of the paper, and its examples, on one page."""
    from ..studies.paper import reproduce

    console.print(f"written to {reproduce(out)}", soft_wrap=True)


@study.command("search", epilog=example("resolvent study search --seeds 5"))
def study_search(
    seeds: Annotated[int, typer.Option(help="Of splits and initialisations, from 0 on.")] = 5,
    out: Annotated[Path, typer.Option(help="The folder for search.csv.")] = Path("runs/search"),
) -> None:
    """Search the space of machines on sunspots and digits, over several seeds. About four minutes for each seed."""
    from ..studies import search

    console.print(f"written to {search.run(out, seeds=seeds)}", soft_wrap=True)


@study.command("depth", epilog=example("resolvent study depth --blocks 8,24 --seeds 5"))
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
    from ..studies import depth

    path = depth.run(out, blocks=sizes_of(blocks, "--blocks", "8,24,48"), seeds=seeds, epochs=epochs, lr=lr)
    console.print(f"written to {path}", soft_wrap=True)
