"""The table of kinds: each under its name in files, with the arguments that only it has."""

from typing import Any

from .convolutional import ConvMachine
from .dense import DenseMachine
from .recurrent import RecurrentMachine

KINDS: dict[str, tuple[type[Any], frozenset[str]]] = {
    "dense": (DenseMachine, frozenset()),
    "conv": (ConvMachine, frozenset({"kernel_size", "padding"})),
    "recurrent": (RecurrentMachine, frozenset({"lags", "time_block"})),
}
