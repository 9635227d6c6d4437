"""The sweep by kernels for GPUs, which are imported when a machine is first on one: their compiler takes a while."""

from functools import lru_cache
from importlib import import_module
from typing import Any

import torch

from ...sweep.system import System

# No file here may have the name of one of these functions: once imported, it would stand in its place.


@lru_cache(maxsize=1)
def _kernels() -> Any:
    try:
        return import_module(".executor", __name__)
    except ImportError:
        return None


def serves(system: System, dtype: torch.dtype, positions: int) -> bool:
    return _kernels() is not None and _kernels().serves(system, dtype, positions)


def sweep(*arguments: Any) -> Any:
    return None if _kernels() is None else _kernels().sweep(*arguments)


def gradients(*_: Any) -> None:
    """On a GPU, the sweep and each gradient are better a call of their own."""


def cotangent(*arguments: Any) -> Any:
    return None if _kernels() is None else _kernels().cotangent(*arguments)
