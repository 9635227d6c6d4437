"""Machines of finite depth: a network is one endofunction f, its forward pass the resolvent (id - f)^-1."""

from importlib import import_module
from typing import Any

from . import executors as executors
from . import space as space
from .algebra.cofiltration import is_cofiltration as is_cofiltration
from .algebra.cofiltration import verify as verify
from .algebra.endofunction import EndofunctionMachine as EndofunctionMachine
from .algebra.nilpotent import LinearMachine as LinearMachine
from .algebra.sum import Layer as Layer
from .algebra.sum import Sum as Sum
from .algebra.sum import depends as depends
from .jets.derivatives import biharmonic as biharmonic
from .jets.derivatives import derivatives as derivatives
from .jets.derivatives import jet as jet
from .jets.derivatives import laplacian as laplacian
from .jets.rules import RULES as _  # noqa: F401  # what functions of PyTorch make of jets
from .machine import Linear as Linear
from .machine import Machine as Machine
from .machine import NotAMachine as NotAMachine
from .machines.convolutional import ConvMachine as ConvMachine
from .machines.dense import DenseMachine as DenseMachine
from .machines.network import Network as Network
from .machines.recurrent import RecurrentMachine as RecurrentMachine
from .machines.structured import StructuredMachine as StructuredMachine
from .sharing.load import load as load
from .structure.operator import Operator as Operator
from .structure.partition import Partition as Partition

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`train` and `search`, whose libraries are imported when one is first asked for."""
    if name in ("train", "search"):
        try:
            training = import_module(".training", __name__)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"rv.{name} needs {error.name}, which the extra [train] installs") from None
        return getattr(training, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
