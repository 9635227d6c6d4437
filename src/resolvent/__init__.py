"""Machines of finite depth: a network is one endofunction f, its forward pass the resolvent (id - f)^-1."""

from typing import Any

from ._conv import ConvMachine as ConvMachine
from ._dense import DenseMachine as DenseMachine
from ._depth import EndofunctionMachine as EndofunctionMachine
from ._depth import LinearMachine as LinearMachine
from ._depth import is_cofiltration as is_cofiltration
from ._depth import verify as verify
from ._load import load as load
from ._partition import Partition as Partition
from ._recurrent import RecurrentMachine as RecurrentMachine
from ._sum import Layer as Layer
from ._sum import NotAMachine as NotAMachine
from ._sum import Sum as Sum
from ._sum import depends as depends

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`train`, whose libraries are imported when it is first asked for."""
    if name == "train":
        try:
            from .training import train
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"rv.train needs {error.name}, which the extra [train] installs") from None
        return train
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
