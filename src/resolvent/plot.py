"""Pictures of machines: the network with its shortcuts, depth sequences, weights and connections. Needs matplotlib.

>>> import resolvent as rv
>>> f = rv.Layer(torch.sin, reads="x", writes="y") + rv.Layer(torch.cos, reads="y", writes="z")
>>> figure = network(f)
>>> figure = depth_sequence(f, {"x": torch.ones(1)})
"""

from collections.abc import Mapping
from typing import Any

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from torch import Tensor

from .algebra.sum import Layer, Terms
from .machines.convolutional import ConvMachine
from .machines.structured import StructuredMachine
from .space.penalty import edge_norms
from .structure.connections import connect

Position = tuple[float, float]


def network(f: Terms) -> Figure:
    """The hypergraph of a sum: a colour for each layer, a circle for each part, levels from left to right."""
    _check(f)
    columns = _columns(f)
    place = _places(f, columns)
    colors = dict(zip(f.layers, _colors(len(f.layers)), strict=True))
    edges = _edges(f, place)
    low, high = _extent(place, edges)
    legend_columns = 4 if len(f.layers) > 16 else 2
    legend_rows = -(-len(f.layers) // legend_columns)
    height = 0.7 * (high - low) + 0.25 * legend_rows + 0.6
    figure = Figure(figsize=(min(40, max(2.8 * legend_columns, 1.1 * len(columns) + 1)), height), layout="constrained")
    axes = figure.subplots()
    for layer, layer_edges in edges.items():
        for edge in layer_edges:
            _curve(axes, *edge, color=colors[layer], width=6.0)
    _circles(axes, place)
    axes.set(ylim=(low, high))
    lines = [Line2D([], [], color=color, linewidth=5, label=_formula(f, layer)) for layer, color in colors.items()]
    if lines:
        figure.legend(handles=lines, loc="outside lower center", frameon=False, fontsize=8, ncols=legend_columns)
    return figure


def depth_sequence(f: Terms, x0: Mapping[str, Tensor]) -> Figure:
    """Both lifted depth sequences of a sum: when each layer is evaluated, and what each part has accumulated.

    Left, a layer's edges have the colour of the last step that evaluated it and are the wider the more often it was;
    right, each part's bar is stacked from its change at each step, the sum of absolute values of its entries.
    """
    _check(f)
    place = _places(f, _columns(f))
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    rows = figure.subplots(2, 2, width_ratios=(1, 1.1))
    titles = {"sweep": "sweep: each layer once", "iterate": "iterate: x0 + f(h), all layers each time"}
    for (left, right), kind in zip(rows, ("sweep", "iterate"), strict=True):
        steps = f.depth_sequence(x0, kind=kind)  # pyright: ignore  # one of the two
        evaluated = [(), *(f.levels if kind == "sweep" else [f.layers] * f.depth)]
        colors = [colormaps["YlOrBr"](0.15 + 0.8 * i / max(1, len(steps) - 1)) for i in range(len(steps))]
        edges = _edges(f, place)
        for layer, layer_edges in edges.items():
            times = [i for i, layers in enumerate(evaluated) if layer in layers]
            for edge in layer_edges:
                _curve(left, *edge, color=colors[times[-1]], width=1.0 + len(times))
        _circles(left, place)
        left.set(ylim=_extent(place, edges))
        left.set_title(titles[kind])
        bottom = torch.zeros(len(f.parts))
        before = None
        for i, (state, color) in enumerate(zip(steps, colors, strict=True)):
            change = [state[n] if before is None else state[n] - before[n] for n in f.parts]
            heights = torch.tensor([c.detach().abs().sum().item() for c in change])
            right.bar(f.parts, heights, bottom=bottom, color=color, edgecolor="0.35", linewidth=0.5, label=f"step {i}")
            bottom, before = bottom + heights, state
        count = sum(map(len, evaluated))
        right.set_title(f"{count} evaluations of {len(f.layers)} layers")
        right.legend(frameon=False, fontsize=8, ncols=1 + len(steps) // 8)
    return figure


def weights(machine: StructuredMachine) -> Figure:
    """W with the grid of its blocks, a panel for each lag; of a convolution, the norms over the kernel."""
    W = machine.weight.detach().float().cpu()
    if isinstance(machine, ConvMachine):
        W = W.flatten(2).norm(dim=2)
    panels = W if W.ndim == 3 else W[None]
    figure, lags = _panels(len(panels))
    limit, signed = W.abs().max().item() or 1.0, not isinstance(machine, ConvMachine)
    edges = [block.start - 0.5 for block in machine.partition.blocks[1:]]
    middles = [(block.start + block.stop - 1) / 2 for block in machine.partition.blocks]
    names, image = [*map(str, range(len(middles)))], None
    for axes, panel in zip(lags, panels, strict=True):
        low, colors = (-limit, "RdBu_r") if signed else (0, "Blues")
        image = axes.imshow(panel.numpy(), interpolation="nearest", cmap=colors, vmin=low, vmax=limit)
        for edge in edges:
            axes.axhline(edge, color="0.4", linewidth=0.5)
            axes.axvline(edge, color="0.4", linewidth=0.5)
        axes.set_xticks(middles, names, fontsize=7)
        axes.set_yticks(middles, names, fontsize=7)
    if image is not None:
        label = "weight" if signed else "norm over the kernel"
        figure.colorbar(image, ax=figure.axes, shrink=0.7, label=label)
    return figure


def connections(machine: StructuredMachine) -> Figure:
    """Which block feeds which, by the norm of W between them, a panel for each lag; grey where none does but could."""
    norms, present = edge_norms(machine).float().cpu(), torch.tensor(machine.connections.matrices)
    possible = connect("all", machine.partition, len(present) - 1, machine.connections.time_block)
    gone = torch.tensor(possible.matrices) & ~present
    figure, lags = _panels(len(norms))
    limit, blocks = norms.max().item() or 1.0, range(len(machine.partition))
    image: Any = None
    names, size = [*map(str, blocks)], 7 if len(blocks) <= 20 else 4
    for axes, panel, fed, removed in zip(lags, norms, present, gone, strict=True):
        axes.imshow(
            removed.float().where(removed, torch.nan).numpy(), interpolation="nearest", cmap="Greys", vmin=0, vmax=8
        )
        image = axes.imshow(
            panel.where(fed, torch.nan).numpy(), interpolation="nearest", cmap="viridis_r", vmin=0, vmax=limit
        )
        axes.set_xticks(blocks, names, fontsize=size)
        axes.set_yticks(blocks, names, fontsize=size)
    figure.colorbar(image, ax=figure.axes, shrink=0.7, label="norm of W")
    return figure


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    """A figure with a square for each lag."""
    columns = min(4, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(3.6 * columns + 1.4, 3.6 * rows + 0.4), layout="constrained")
    panels = [*figure.subplots(rows, columns, squeeze=False).flat]
    for lag, axes in enumerate(panels[:count]):
        axes.set(xlabel="from block", ylabel="to block", title=f"lag {lag}" if count > 1 else None)
    for axes in panels[count:]:
        axes.axis("off")
    return figure, panels[:count]


def _check(f: Terms) -> None:
    if not isinstance(f, Terms):
        raise TypeError(f"f must be a layer or a sum, got {type(f).__name__}: a structured machine has .as_sum()")


def _columns(f: Terms) -> list[list[str]]:
    """The parts by the level after which they are final; inputs first."""
    final = f.part_levels()
    return [[name for name, level in final.items() if level == i] for i in range(f.depth + 1)]


def _places(f: Terms, columns: list[list[str]]) -> dict[str, Position]:
    """Columns from left to right; within one, parts lie near the middle of what they are computed from."""
    sources: dict[str, list[str]] = {}
    for layer in f.layers:
        for name in layer.writes:
            sources.setdefault(name, []).extend(layer.reads)
    place: dict[str, Position] = {}

    def middle(name: str) -> float:
        heights = [place[source][1] for source in sources.get(name, ()) if source in place]
        return sum(heights) / len(heights) if heights else 0.0

    for x, column in enumerate(columns):
        for k, name in enumerate(sorted(column, key=middle, reverse=True)):
            place[name] = (float(x), (len(column) - 1) / 2 - k)
    return place


def _edges(f: Terms, place: dict[str, Position]) -> dict[Layer, list[tuple[Position, Position, float]]]:
    """From what a layer reads to a hub before what it writes, and on from there; long edges are lifted, up or down."""
    edges: dict[Layer, list[tuple[Position, Position, float]]] = {}
    side = 1
    for layer in f.layers:
        x = min(place[name][0] for name in layer.writes) - 0.45
        heights = [place[name][1] for name in layer.writes]
        hub = (x, sum(heights) / len(heights))
        pairs = [(place[name], hub) for name in layer.reads] + [(hub, place[name]) for name in layer.writes]
        lifts = [side * 0.35 * (b[0] - a[0]) if b[0] - a[0] > 1 else 0.0 for a, b in pairs]
        edges[layer] = [(a, b, lift) for (a, b), lift in zip(pairs, lifts, strict=True)]
        side = -side if any(lifts) else side
    return edges


def _curve(axes: Axes, a: Position, b: Position, lift: float, *, color, width: float) -> None:
    reach = 0.5 * (b[0] - a[0])
    controls = [(a[0] + reach, a[1] + lift), (b[0] - reach, b[1] + lift)]
    path = Path([a, *controls, b], [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
    style = dict(facecolor="none", edgecolor=color, linewidth=width, alpha=0.85, capstyle="round")
    axes.add_patch(PathPatch(path, zorder=1, **style))


def _circles(axes: Axes, place: dict[str, Position]) -> None:
    style = dict(boxstyle="circle,pad=0.25", facecolor="white", edgecolor="0.35", linewidth=1)
    for name, (x, y) in place.items():
        size = max(3, 9 - max(0, len(name) - 3))
        axes.text(x, y, name, ha="center", va="center", fontsize=size, bbox=style, zorder=3, parse_math=False)
    xs = [x for x, _ in place.values()] or [0.0]
    axes.set_xlim(min(xs) - 0.5, max(xs) + 0.5)
    axes.axis("off")


def _extent(place: dict[str, Position], edges: dict[Layer, list[tuple[Position, Position, float]]]) -> Position:
    """The lowest and highest that circles and curves reach."""
    heights = [y for _, y in place.values()] or [0.0]
    heights += [(a[1] + b[1]) / 2 + 0.75 * lift for layer in edges.values() for a, b, lift in layer]
    return min(heights) - 0.6, max(heights) + 0.6


def _colors(count: int) -> list:
    if count <= 10:
        return [colormaps["tab10"](i) for i in range(count)]
    return [colormaps["turbo"](0.05 + 0.9 * i / (count - 1)) for i in range(count)]


def _formula(f: Terms, layer: Layer) -> str:
    return f"{f.labels[layer]}: {' × '.join(layer.reads)} → {' × '.join(layer.writes)}"
