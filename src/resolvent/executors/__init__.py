"""The executors there are, each under its type of device."""

from ..sweep.executor import EXECUTORS
from . import native, triton

EXECUTORS.update(cpu=native, cuda=triton)
