"""The command, what its parts print with, and how they name what they are given."""

from pathlib import Path

import typer
from rich.console import Console

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
console = Console(markup=False, highlight=False)


@app.callback()
def resolvent() -> None:
    """Neural networks as machines of finite depth: one command that trains one on your data."""


def example(text: str) -> str:
    return f"Example: [bold]{text}[/bold]"


def sizes_of(text: str, option: str = "--sizes", example: str = "64,64,64") -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise ValueError(f"{option} {text!r} must be whole numbers with commas between, as {example}") from None


def folder_for(data: str, resume: bool) -> Path:
    """The next free folder for this data or, to go on, the last one that is not finished."""
    base = Path("runs") / Path(data).stem
    taken = [base, *(Path(f"{base}-{i}") for i in range(2, 10_000))]
    if not resume:
        return next(folder for folder in taken if not folder.exists())
    from ..training import is_unfinished

    unfinished = [folder for folder in taken if is_unfinished(folder)]
    if not unfinished:
        raise ValueError(f"there is no unfinished run of {data} in runs: name its folder with --out")
    return unfinished[-1]
