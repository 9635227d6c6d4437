"""Training on data: `train` and what it returns. Needs the packages of `resolvent[train]`."""

from ._data import EMBEDDED as EMBEDDED
from ._data import Data as Data
from ._data import read as read
from ._data import table as table
from ._network import Network as Network
from ._processes import processes as processes
from ._processes import rank as rank
from ._processes import same_for_all as same_for_all
from ._report import forecast as forecast
from ._report import pictures as pictures
from ._report import scores as scores
from ._report import summary as summary
from ._run import Trained as Trained
from ._run import open_run as open_run
from ._run import train as train
from ._settings import is_unfinished as is_unfinished
