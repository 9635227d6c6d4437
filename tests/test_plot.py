"""Pictures are drawn, with every layer and part in them, and depend on nothing but the machine."""

import pytest
import torch
from networks import the_papers_figure

import resolvent as rv

plot = pytest.importorskip("resolvent.plot")


def texts(figure):
    legend = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return [text.get_text() for axes in figure.axes for text in axes.texts] + legend


def test_a_network_shows_every_part_and_layer(tmp_path):
    f1, f2, f3, f4, f5 = the_papers_figure()
    figure = plot.network(f1 + f2 + f3 + f4 + f5)
    assert sorted(texts(figure)) == sorted(
        [f"x{i}" for i in range(1, 9)]
        + ["f1: x1 × x2 → x3", "f2: x1 → x5", "f3: x3 → x4", "f4: x4 → x5 × x6 × x7", "f5: x6 → x8"]
    )
    columns = {text.get_text(): text.get_position()[0] for text in figure.axes[0].texts}
    assert [columns[f"x{i}"] for i in range(1, 9)] == [0, 0, 1, 2, 3, 3, 3, 4]
    for suffix in ("svg", "png"):
        figure.savefig(tmp_path / f"network.{suffix}")
        assert (tmp_path / f"network.{suffix}").stat().st_size > 1000


def test_fifty_layers_and_none_can_be_drawn(tmp_path):
    layers = [rv.Layer(torch.sin, reads=[f"p{i}"], writes=f"p{i + 1}") for i in range(50)]
    plot.network(rv.Sum(layers)).savefig(tmp_path / "fifty.png")
    plot.network(rv.Sum([])).savefig(tmp_path / "none.png")


def test_a_depth_sequence_stacks_up_to_the_resolvent():
    f = rv.Layer(lambda a: 2 * a, reads="a", writes="b") + rv.Layer(lambda a, b: a + b, reads=("a", "b"), writes="c")
    x0 = {"a": torch.ones(1), "b": torch.ones(1)}
    h = f(x0)
    figure = plot.depth_sequence(f, x0)
    for axes in figure.axes[1::2]:
        tops = {}
        for bar in axes.patches:
            tops[round(bar.get_x(), 3)] = bar.get_y() + bar.get_height()
        assert list(tops.values()) == [h[name].item() for name in f.parts]
    assert [axes.get_title() for axes in figure.axes[1::2]] == [
        "2 evaluations of 2 layers",
        "4 evaluations of 2 layers",
    ]


@pytest.mark.unchecked
def test_a_structured_machine_is_to_be_expanded_first():
    with pytest.raises(
        TypeError, match=r"f must be a layer or a sum, got DenseMachine: a structured machine has .as_sum"
    ):
        plot.network(rv.DenseMachine((1, 1)))


def test_connections_show_the_norms_of_what_is_read_and_in_grey_what_could_be(tmp_path):
    machine = rv.RecurrentMachine((2, 3, 1), lags=1, connections="sequential")
    figure = plot.connections(machine)
    for lag, axes in enumerate(figure.axes[:2]):
        gone, present = (image.get_array() for image in axes.images)
        norms, read = rv.space.edge_norms(machine)[lag], torch.tensor(machine.connections.matrices[lag])
        assert torch.equal(torch.as_tensor(~present.mask), read)
        assert torch.equal(torch.as_tensor(present.filled(0)), norms.detach())
        possible = torch.ones(3, 3) if lag else torch.ones(3, 3).tril(-1)
        assert torch.equal(torch.as_tensor(~gone.mask), possible.bool() & ~read)
    plot.connections(rv.DenseMachine((4,) * 40)).savefig(tmp_path / "forty.png")
    plot.connections(rv.ConvMachine((1,))).savefig(tmp_path / "one.png")
