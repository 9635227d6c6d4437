"""Every figure and table of the paper, and its examples."""

import platform
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from ... import plot
from ...algebra.sum import Layer, Sum
from ...pages.write import write_page
from ...training import Trained, read, scores, train
from ...training import forecast as draw_forecast
from .. import benchmark
from . import polynomial as _polynomial
from . import sine as _sine


def reproduce(out: Path, *, polynomial_steps: int = 1500, sine_steps: int = 400, only: str = "") -> Path:
    """Write the page and its figures to the folder; the benchmark measures cases with `only` in their name."""
    out.mkdir(parents=True, exist_ok=True)
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    measured = {device: benchmark.read(benchmark.run(out, device=device, quick=True, only=only)) for device in devices}
    runtimes, ratios = benchmark.figures(measured)
    five, network = five_nodes(), complex_shortcuts()
    polynomial, sine = _polynomial.learn(polynomial_steps), _sine.learn(sine_steps)
    series = train("sunspots", progress=True)
    write_page(
        out / "paper.html",
        {
            "depth-sequences": (
                plot.depth_sequence(five, {"x1": torch.ones(1)}),
                "Above, each layer is evaluated once, in order; below, all layers are evaluated at each step.",
            ),
            "network": (plot.network(network), "The network that the paper draws, with its five layers."),
            "runtimes": (runtimes, "Runtimes on a logarithmic scale."),
            "ratios": (ratios, "Backward over forward."),
            "polynomial": polynomial,
            "sine": sine,
            "time-series": (
                _forecast(series),
                "Sunspots in each year, one step ahead, over years it was not trained on.",
            ),
        },
        formulas=[["layer", "reads", "writes", "level"], *formulas(network)],
        benchmark=timings(measured),
        series=series.metrics,
        scores=scores(series.metrics),
        versions=f"Python {platform.python_version()}, PyTorch {torch.__version__}, {torch.get_num_threads()} threads.",
    )
    return out / "paper.html"


def five_nodes() -> Sum:
    """A linear machine on 5 nodes: each is half the sum of all before it."""

    def half(*xs: Tensor) -> Tensor:
        return torch.stack(xs).sum(0) / 2

    names = [f"x{i}" for i in range(1, 6)]
    return Sum([Layer(half, reads=names[:i], writes=names[i], name=f"w{i}") for i in range(1, 5)])


def complex_shortcuts() -> Sum:
    """The paper's network f1 + … + f5 on the parts x1 … x8."""

    def split(x4: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x4[:, :5], x4.sin(), x4.cos()

    return Sum(
        [
            Layer(nn.Bilinear(4, 3, 8), reads=("x1", "x2"), writes="x3", name="f1"),
            Layer(nn.Linear(4, 5), reads="x1", writes="x5", name="f2"),
            Layer(nn.Linear(8, 6), reads="x3", writes="x4", name="f3"),
            Layer(split, reads="x4", writes=("x5", "x6", "x7"), name="f4"),
            Layer(nn.Linear(6, 2), reads="x6", writes="x8", name="f5"),
        ]
    )


def formulas(f: Sum) -> list[list[str]]:
    return [
        [f.labels[layer], ", ".join(layer.reads), ", ".join(layer.writes), str(level)]
        for level, layers in enumerate(f.levels, start=1)
        for layer in layers
    ]


def timings(measured: dict[str, list[dict[str, str]]]) -> list[list[str]]:
    """The paper's table, with its twelve rows: the machine's explicit passes, the loop and the authors' numbers."""
    table = [["case", "device"]]
    table[0] += [
        f"{column}, {who}" for who in ("machine", "loop", "authors") for column in ("forward", "backward", "ratio")
    ]
    for (case, device), authors in benchmark.AUTHORS.items():
        rows = measured.get(device, [])
        pairs = [benchmark.times(rows, device, program).get(case) for program in ("passes", "loop")]
        cells = ((f"{p[0]:,.0f}", f"{p[1]:,.0f}", f"{p[1] / p[0]:.2f}") if p else ("–",) * 3 for p in (*pairs, authors))
        table.append([case, device, *(cell for three in cells for cell in three)])
    return table


def _forecast(series: Trained) -> Figure:
    data, steps = read("sunspots"), series.metrics["rows"]["test"]
    predicted = series.predict(data.inputs)["prediction"].to_numpy()[-steps - 1 : -1]
    assert data.time is not None
    return draw_forecast(data.target.to_numpy()[-steps:], predicted, data.time.to_numpy()[-steps:])
