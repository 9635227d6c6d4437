"""Training on data: `train` and what it returns. Needs the packages of `resolvent[train]`."""

from ._data import EMBEDDED as EMBEDDED
from ._data import table as table
from ._run import Trained as Trained
from ._run import open_run as open_run
from ._run import train as train
