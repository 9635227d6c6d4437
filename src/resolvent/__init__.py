"""Machines of finite depth: a network is one endofunction f, its forward pass the resolvent (id - f)^-1."""

from ._conv import ConvMachine as ConvMachine
from ._dense import DenseMachine as DenseMachine
from ._machine import Derivative as Derivative
from ._partition import Partition as Partition
from ._recurrent import RecurrentMachine as RecurrentMachine

__version__ = "0.1.0"
