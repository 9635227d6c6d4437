"""Several processes that train together, as torchrun starts them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist


def rank() -> int:
    return int(os.environ.get("RANK", 0))


def same_for_all(value: Any) -> Any:
    """The first process's value, in all of them; each waits for it."""
    if not dist.is_initialized():
        return value
    shared = [value]
    dist.broadcast_object_list(shared)
    return shared[0]


@contextmanager
def processes() -> Iterator[None]:
    """Where torchrun started several processes, they form a group, which Lightning then uses."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1 or dist.is_initialized():
        yield
        return
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
        dist.barrier()
    finally:
        dist.destroy_process_group()
