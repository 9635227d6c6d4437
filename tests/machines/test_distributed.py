"""Two processes compute what one computes."""

import copy
import datetime
import gc
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from cases import ALL_MACHINES, Case, randomize
from tolerance import assert_equal
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

pytestmark = [
    pytest.mark.unchecked,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"),
]
KINDS = ("dense", "conv", "recurrent")
ROOT = Path(__file__).parents[2]


def in_processes(count: int, function, *args) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spawn(_start, args=(count, f"file://{folder}/store", function, args), nprocs=count)


def _start(rank: int, count: int, store: str, function, args) -> None:
    torch.set_num_threads(1)
    minute = datetime.timedelta(minutes=1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=count, timeout=minute)
    function(*args)
    gc.collect()  # a wrapped model must go before its processes part, or they wait for each other
    dist.barrier()
    dist.destroy_process_group()


def prepare(name: str) -> tuple[Case, torch.nn.Module, torch.Tensor]:
    case = ALL_MACHINES[name]()
    case.batch = (4,)
    machine = randomize(case.machine)
    return case, machine, case.points(1)[0]


def step(model: torch.nn.Module, x: torch.Tensor) -> None:
    """One step of a loss that is a mean over samples, as the wrappers average over processes."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(x).square().flatten(1).sum(1).mean().backward()
    optimizer.step()


def whole(x):
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def steps_agree() -> None:
    rank = dist.get_rank()
    for name in KINDS:
        _, machine, x = prepare(name)
        expected = copy.deepcopy(machine)
        step(expected, x)
        replicated = copy.deepcopy(machine)
        step(DistributedDataParallel(replicated), x.chunk(2)[rank])
        sharded = copy.deepcopy(machine)
        fully_shard(sharded)
        step(sharded, x.chunk(2)[rank])
        for model in (replicated, sharded):
            for actual, wanted in zip(model.parameters(), expected.parameters(), strict=True):
                assert_equal(whole(actual.detach()), wanted.detach())
                assert_equal(whole(actual.grad), wanted.grad)


def test_data_parallel_and_sharded_steps_are_those_of_one_process():
    in_processes(2, steps_agree)


def save_sharded(folder: str) -> None:
    for name in KINDS:
        _, machine, _ = prepare(name)
        fully_shard(machine)
        save(get_model_state_dict(machine), checkpoint_id=f"{folder}/{name}")


def load_sharded(folder: str) -> None:
    for name in KINDS:
        _, expected, _ = prepare(name)
        machine = ALL_MACHINES[name]().machine
        fully_shard(machine)
        state = get_model_state_dict(machine)
        load(state, checkpoint_id=f"{folder}/{name}")
        set_model_state_dict(machine, state)
        for actual, wanted in zip(machine.parameters(), expected.parameters(), strict=True):
            assert torch.equal(whole(actual.detach()), wanted.detach())


@pytest.mark.parametrize(("savers", "loaders"), [(2, 1), (1, 2)])
def test_checkpoints_load_in_another_number_of_processes(savers, loaders, tmp_path):
    in_processes(savers, save_sharded, str(tmp_path))
    in_processes(loaders, load_sharded, str(tmp_path))


def test_the_example_gives_the_loss_of_one_process():
    losses = set()
    for processes, options in ((1, []), (2, []), (2, ["--shard"])):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        command += [str(ROOT / "examples" / "distributed.py"), "--steps", "20", *options]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        result = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=120)
        losses.update(re.findall(r"loss (\S+) after 20 steps", result.stdout))
    assert len(losses) == 1, losses
