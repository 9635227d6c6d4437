"""The study of depth: its networks are comparable, its numbers come again, its command writes and refuses."""

import csv
import sys
from typing import Any

import pytest
import torch
from torch import nn

from resolvent import cli
from resolvent.studies import depth

pytestmark = pytest.mark.unchecked


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Runs `resolvent study depth …` in an empty folder; returns the exit status, what was printed, and complaints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli.console, "_width", 200)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["resolvent", "study", "depth", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.run()
        return left.value.code or 0, *capsys.readouterr()

    return run


def reaches(network, layer):
    """Whether the output still depends on the input where a layer gives zero."""
    x: Any = torch.rand(5, depth.INPUTS, requires_grad=True)
    layer.register_forward_hook(lambda module, given, result: 0 * result)
    network.eval()(x).sum().backward()
    return bool(x.grad.any())


@pytest.mark.parametrize("blocks", [2, 8, 48])
def test_the_machines_parameters_are_the_entries_it_reads(blocks):
    network: Any = depth.build(depth.MACHINE, blocks, "He")
    machine = network.machine
    read = machine.weight.count_nonzero().item() + machine.bias.numel()
    assert depth.machine_parameters(blocks) == read


@pytest.mark.parametrize("blocks", [2, 8, 48])
@pytest.mark.parametrize("name", depth.CLASSICAL)
def test_classical_networks_have_as_many_parameters(name, blocks):
    count = depth.parameters(depth.build(name, blocks, "PyTorch"))
    assert count == pytest.approx(depth.machine_parameters(blocks), rel=0.03)


def test_only_the_sequential_network_has_no_way_around_a_hidden_layer():
    sequential: Any = depth.build("sequential", 6, "He")
    layers = [layer for layer in sequential if isinstance(layer, nn.Linear)]
    assert len(layers) == 7  # six hidden ones and the output's
    assert not reaches(sequential, layers[3])
    residual: Any = depth.build("residual", 6, "He")
    assert reaches(residual, residual.branches[3])


def test_initialisations_differ_and_the_networks_do_not():
    he: Any
    pytorch: Any
    he, pytorch = (depth.build("sequential", 3, drawn) for drawn in ("He", "PyTorch"))
    assert [x.shape for x in he.parameters()] == [x.shape for x in pytorch.parameters()]
    width = he[2].in_features
    assert he[2].weight.square().mean().item() == pytest.approx(2 / width, rel=0.2)
    assert pytorch[2].weight.square().mean().item() == pytest.approx(1 / (3 * width), rel=0.2)


def test_the_command_writes_the_table_and_the_same_seed_gives_the_same_numbers(command, tmp_path):
    for out in ("once", "again"):
        torch.rand(1)  # the seed decides, not what was drawn before
        random = torch.get_rng_state()
        status, output, _ = command("--blocks", "2,3", "--seeds", 2, "--epochs", 2, "--out", out)
        assert status == 0
        assert f"written to {out}/depth.csv" in output
        assert "± " in output
        assert torch.equal(torch.get_rng_state(), random)
    once, again = (
        list(csv.DictReader((tmp_path / out / "depth.csv").read_text().splitlines())) for out in ("once", "again")
    )
    assert [row["accuracy"] for row in once] == [row["accuracy"] for row in again]
    keys = [(row["network"], row["initialisation"], row["blocks"], row["seed"]) for row in once]
    assert sorted(keys) == sorted((*network, n, seed) for network in depth.NETWORKS for n in "23" for seed in "01")
    assert all(0 <= float(row["accuracy"]) <= 1 and float(row["seconds"]) > 0 for row in once)
    assert {row["torch"] for row in once} == {torch.__version__}
    assert [path.name for path in (tmp_path / "once").iterdir()] == ["depth.csv"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--blocks", "8;24"], "--blocks '8;24' must be whole numbers with commas between, as 8,24,48"),
        (["--blocks", "8,0"], "blocks=(8, 0) must be different numbers of at least 1"),
        (["--blocks", "8,8"], "blocks=(8, 8) must be different numbers of at least 1"),
        (["--seeds", 0], "seeds=0 must be at least 1"),
        (["--epochs", 0], "epochs=0 must be at least 1"),
        (["--lr", -1], "lr=-1.0 must be a positive number"),
        (["--lr", "nan"], "lr=nan must be a positive number"),
    ],
)
def test_bad_values_are_one_line_and_write_nothing(arguments, message, command, tmp_path):
    assert command(*arguments) == (1, "", f"error: {message}\n")
    assert not list(tmp_path.iterdir())


def test_a_file_in_place_of_the_folder_is_refused(command, tmp_path):
    (tmp_path / "taken").write_text("kept")
    assert command("--out", "taken") == (1, "", "error: out=taken is a file, a folder is needed\n")
    assert (tmp_path / "taken").read_text() == "kept"


def test_help_has_an_example(command):
    status, output, _ = command("--help")
    assert status == 0
    assert "Example: resolvent study depth" in output
