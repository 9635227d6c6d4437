"""A machine is data: what is saved comes back bit for bit, or not at all."""

import json
import os
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import ALL_MACHINES, SERVED, cases, randomize, read_part
from hypothesis import given
from safetensors.torch import load_file, save_file
from tolerance import assert_equal

import resolvent as rv
from resolvent.files import folder as _folder
from resolvent.structure.activation import ACTIVATIONS

READER = Path(__file__).parents[2] / "examples" / "reader.py"
every_machine = pytest.mark.parametrize("name", [n for n in ALL_MACHINES if "custom" not in n and n != "graph"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@every_machine
def test_a_saved_machine_comes_back_bit_for_bit(name, dtype, tmp_path):
    machine = randomize(ALL_MACHINES[name]().machine).to(dtype)
    machine.save(tmp_path / "new" / "folder")
    again: Any = rv.load(tmp_path / "new" / "folder")
    assert type(again) is type(machine)
    assert repr(again) == repr(machine)
    assert again.specification == machine.specification
    assert torch.equal(again.weight, machine.weight.where(read_part(machine), 0))
    for key, value in machine.state_dict().items():
        assert again.state_dict()[key].dtype == dtype
        assert key == "weight" or torch.equal(again.state_dict()[key], value)
    assert all(parameter.requires_grad for parameter in again.parameters())


@given(case=cases(kinds=SERVED))
def test_any_machine_comes_back(tmp_path_factory, case):
    folder = tmp_path_factory.mktemp("machine")
    case.machine.save(folder)
    (x,) = case.points(1)
    assert torch.equal(rv.load(folder)(x), case.machine(x))


def as_version_1(folder, machine):
    """The folder as earlier versions of this library wrote it: W whole, also where it is not read."""
    path = folder / "machine.json"
    save_file({name: x.detach().clone() for name, x in machine.state_dict().items()}, folder / "weights.safetensors")
    fields = json.loads(path.read_text()) | dict(version=1, weights_sha256=_folder._sha256(folder / _folder.WEIGHTS))
    del fields["packed"]
    path.write_text(json.dumps(fields))


@given(case=cases(kinds=SERVED))
def test_files_of_version_1_are_read(tmp_path_factory, case):
    folder = tmp_path_factory.mktemp("machine")
    case.machine.save(folder)
    as_version_1(folder, case.machine)
    again = rv.load(folder)
    assert again.specification == case.machine.specification
    for name, value in case.machine.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)


@given(case=cases(kinds=SERVED))
def test_a_file_holds_what_is_read_and_nothing_else(tmp_path_factory, case):
    """In the order of W in memory, packed or not."""
    folders = [tmp_path_factory.mktemp("machine") for _ in range(2)]
    for folder, machine in zip(folders, (case.machine, rv.space.packed(case.machine)), strict=True):
        machine.save(folder)
        assert torch.equal(load_file(folder / "weights.safetensors")["weight"], case.machine.weight[read_part(machine)])
    assert rv.load(folders[0]).stored == "weight"
    assert rv.load(folders[1]).stored == "entries"


@every_machine
def test_a_reader_in_numpy_computes_the_same(name, tmp_path):
    """`examples/reader.py` knows the specification only."""
    assert len(READER.read_text().splitlines()) <= 95
    read = runpy.run_path(str(READER))["read"]
    case = ALL_MACHINES[name]()
    randomize(case.machine).save(tmp_path)
    x = case.points(1)[0]
    short = x.narrow(case.channel_axis, 0, case.machine.partition.sizes[0])
    for point in (x, short):
        assert_equal(torch.from_numpy(read(tmp_path)(point.numpy())), case.machine(point))


def test_recurrent_connections_are_saved_as_the_matrices_that_every_reader_knows(tmp_path):
    machine = rv.Network.recurrent(1, (2, 2), 1, lags=2).machine
    machine.save(tmp_path)
    assert isinstance(machine.specification["connections"], list)
    again = rv.load(tmp_path)
    assert repr(again) == repr(machine)
    assert "connections=recurrent" in repr(again)


def test_every_activation_is_in_the_specification_and_its_reader():
    page = (READER.parents[1] / "docs" / "specification.md").read_text()
    functions = runpy.run_path(str(READER))["ACTIVATIONS"]
    y = torch.linspace(-25, 25, 1001, dtype=torch.float64)
    for name, activation in ACTIVATIONS.items():
        assert f"| `{name}` |" in page
        assert_equal(torch.from_numpy(functions[name](y.numpy())), activation.function(y))


def machines_in_a_sum():
    shared = rv.DenseMachine((3, 2, 3), dtype=torch.float64)
    other = rv.DenseMachine((8, 3), "relu", bias=False, dtype=torch.float64)
    return rv.Sum(
        [
            rv.Layer(other, reads="b", writes="c", name="last"),
            rv.Layer(shared, reads="a", writes="b"),
            rv.Layer(shared, reads="d", writes="b"),
        ],
        parts=["e"],
    )


def test_a_sum_of_machines_comes_back_with_what_it_shares(tmp_path):
    f = machines_in_a_sum()
    f.save(tmp_path)
    again = rv.load(tmp_path)
    assert isinstance(again, rv.Sum)
    x0 = {"a": torch.randn(4, 3, dtype=torch.float64), "d": torch.randn(4, 3, dtype=torch.float64)}
    for name, value in f(x0).items():
        assert torch.equal(again(x0)[name], value)
    assert again.layers[1].module is again.layers[2].module
    assert again.parts == f.parts
    assert [layer.name for layer in again.layers] == ["last", None, None]
    assert again.depth == f.depth


def test_only_data_can_be_shared(tmp_path):
    with pytest.raises(ValueError, match="activation <lambda> is not one of identity, tanh"):
        rv.DenseMachine((2, 3), lambda y: y * y).save(tmp_path / "a")
    with pytest.raises(TypeError, match=r"a layer is Linear.*only sums whose layers are structured machines"):
        rv.Sum([rv.Layer(torch.nn.Linear(2, 3), reads="a", writes="b")]).save(tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


BAD = {
    "not json": (lambda s: "{", "machine.json is not JSON"),
    "deep": (lambda s: "[" * 100_000, "machine.json is not JSON"),
    "a list": (lambda s: "[1]", 'it needs "format": "resolvent"'),
    "another format": (lambda s: s | {"format": "onnx"}, 'it needs "format": "resolvent"'),
    "version of another type": (
        lambda s: s | {"version": True},
        "has version True, this library reads versions up",
    ),
    "activation as a word": (lambda s: s | {"activation": "tanh"}, "activation must be a list with one entry for each"),
    "another version": (lambda s: s | {"version": 3}, "has version 3, this library reads versions up to 2"),
    "unknown field": (lambda s: s | {"code": "import os"}, "a dense machine has unknown fields code"),
    "missing field": (lambda s: {k: v for k, v in s.items() if k != "bias"}, "a dense machine lacks fields bias"),
    "no hash": (lambda s: {k: v for k, v in s.items() if k != "weights_sha256"}, 'has no "weights_sha256"'),
    "unknown kind": (lambda s: s | {"kind": "transformer"}, "kind 'transformer' is unknown: this library reads dense"),
    "kind of another type": (lambda s: s | {"kind": ["dense"]}, "kind .'dense'. is unknown"),
    "other sizes": (lambda s: s | {"sizes": [2, 4]}, r"has tensors .*'weight': \(6,\).*needs .*'weight': \(8,\)"),
    "huge": (lambda s: s | {"sizes": [10**30]}, "is larger than any file"),
    "large": (lambda s: s | {"sizes": [10**6, 1]}, "need far more memory than the 2,000,001 numbers"),
    "sizes not a list": (lambda s: s | {"sizes": "23"}, "sizes must be a sequence of integers"),
    "sizes of words": (lambda s: s | {"sizes": ["2", 3]}, "each of sizes must be an integer"),
    "another activation": (lambda s: s | {"activation": ["tanh", "os.system"]}, "activation 'os.system' is unknown"),
    "no bias": (lambda s: s | {"bias": False}, "has tensors .*bias.*the machine needs"),
    "packed of another type": (lambda s: s | {"packed": 1}, "packed must be true or false, got 1"),
    "many blocks": (
        lambda s: s | {"sizes": [1] * 2**13, "activation": ["tanh"] * 2**13, "connections": "sequential"},
        "need far more memory than the 16,383 numbers of the file",
    ),
    "a large machine of few connections": (
        lambda s: s | {"sizes": [2**15, 1], "connections": [[False] * 2] * 2, "bias": False},
        "need far more memory than the 0 numbers of the file",
    ),
    "unknown connections": (lambda s: s | {"connections": "some"}, "connections='some' is unknown: use 'all'"),
    "bias of another type": (lambda s: s | {"bias": 1}, "bias must be true or false, got 1"),
    "backwards": (lambda s: s | {"connections": [[False, True], [False, False]]}, "only earlier blocks may feed later"),
    "not boolean": (lambda s: s | {"connections": [[0, 0], [1, 0]]}, "connections must be boolean"),
    "a sum without layers": (lambda s: s | {"kind": "sum"}, "a sum has unknown fields activation"),
}


@pytest.mark.unchecked
@pytest.mark.parametrize("name", BAD)
def test_a_bad_specification_is_refused(name, tmp_path):
    change, message = BAD[name]
    rv.DenseMachine((2, 3)).save(tmp_path)
    path = tmp_path / "machine.json"
    changed = change(json.loads(path.read_text()))
    path.write_text(changed if isinstance(changed, str) else json.dumps(changed))
    with pytest.raises((ValueError, TypeError), match=message):
        rv.load(tmp_path)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([{"machine": 2, "reads": ["a"], "writes": "b", "name": None}], "a layer names machine 2, the sum has 2"),
        ([{"machine": 0, "reads": ["a"], "writes": "b"}], "a layer lacks fields name"),
        ([{"machine": 0, "reads": ["a"], "writes": "b", "name": 1}], "a layer's name must be a string or null"),
        ([{"machine": 0, "reads": ["a"], "writes": "a", "name": None}], "depends on itself"),
        (
            [{"machine": 0, "reads": "a", "writes": "b", "name": None}],
            "a layer's reads must be a list of parts",
        ),
        (3, "must be lists"),
    ],
)
def test_a_bad_sum_is_refused(layers, message, tmp_path):
    machines_in_a_sum().save(tmp_path)
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"layers": layers}))
    with pytest.raises(ValueError, match=message):
        rv.load(tmp_path)


def test_changed_or_cut_weights_are_refused(tmp_path):
    rv.DenseMachine((2, 3)).save(tmp_path)
    path = tmp_path / "weights.safetensors"
    whole = path.read_bytes()
    for changed in (whole[:-1], whole[:10], b"", whole[:-1] + bytes([whole[-1] ^ 1]), whole + b"0"):
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"is not the file that machine\.json names"):
            rv.load(tmp_path)
    specification = tmp_path / "machine.json"
    for broken in (whole[:-1], b"\xff" * 100):  # the hash is right, the file is not
        path.write_bytes(broken)
        fields = json.loads(specification.read_text()) | {"weights_sha256": _folder._sha256(path)}
        specification.write_text(json.dumps(fields))
        with pytest.raises(ValueError, match="is not a safetensors file"):
            rv.load(tmp_path)


@pytest.mark.parametrize(
    ("weight", "bias", "message"),
    [
        (torch.float32, torch.float64, "a weight and a bias of different types"),
        (torch.int64, torch.int64, "tensors of types .*I64.*, a machine needs one of BF16, F16, F32, F64"),
        (torch.float8_e4m3fn, torch.float32, "a machine needs one of"),
    ],
)
def test_weights_of_other_types_are_refused(weight, bias, message, tmp_path):
    specification = rv.DenseMachine((2, 3)).specification
    _folder.write(tmp_path, specification, {"weight": torch.zeros(6).to(weight), "bias": torch.zeros(5).to(bias)})
    with pytest.raises(ValueError, match=message):
        rv.load(tmp_path)


def test_a_first_save_killed_before_its_last_move_is_complete(tmp_path):
    machine = rv.DenseMachine((2, 3))
    machine.save(tmp_path)
    (tmp_path / "machine.json").rename(tmp_path / "machine.json.new")
    assert torch.equal(rv.load(tmp_path)(torch.ones(2)), machine(torch.ones(2)))


def test_missing_and_oversized_files_are_named(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"machine\.json does not exist: a machine's folder has"):
        rv.load(tmp_path)
    rv.DenseMachine((2, 3)).save(tmp_path)
    monkeypatch.setattr(_folder, "LARGEST_SPECIFICATION", 10)
    with pytest.raises(ValueError, match="at most 10 are read"):
        rv.load(tmp_path)


@pytest.mark.parametrize("killed_at", range(8))
def test_a_killed_save_leaves_the_old_machine_or_the_new_one(killed_at, tmp_path, monkeypatch):
    old, new = (randomize(rv.DenseMachine((2, 3)), seed) for seed in (1, 2))
    old.save(tmp_path)
    calls = 0

    def dying(function):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == killed_at + 1:
                raise KeyboardInterrupt
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(_folder, "save_file", dying(_folder.save_file))
        patch.setattr(_folder, "_sha256", dying(_folder._sha256))
        patch.setattr(Path, "write_text", dying(Path.write_text))
        patch.setattr(os, "fsync", dying(os.fsync))
        patch.setattr(Path, "replace", dying(Path.replace))
        with pytest.raises(KeyboardInterrupt):
            new.save(tmp_path)
    expected = old if killed_at < 7 else new  # the seventh step puts the new weights in place
    x = torch.ones(2)
    assert torch.equal(rv.load(tmp_path)(x), expected(x))
    new.save(tmp_path)
    assert torch.equal(rv.load(tmp_path)(x), new(x))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["machine.json", "weights.safetensors"]


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (rv.DenseMachine, dict(activation=["identity", "tanh"], connections="sequential")),
        (rv.ConvMachine, dict(kernel_size=5, padding="causal")),
        (rv.RecurrentMachine, dict(lags=2, time_block=2, bias=False)),
    ],
)
def test_hub_mixin_saves_and_loads_a_local_folder(kind, arguments, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    machine_class = type("Shared", (kind, hub.PyTorchModelHubMixin), {})
    machine = machine_class(sizes=[2, 3], **arguments)
    machine.save_pretrained(tmp_path)
    again = machine_class.from_pretrained(tmp_path)
    assert again.extra_repr() == machine.extra_repr()
    assert torch.equal(again.weight, machine.weight)
