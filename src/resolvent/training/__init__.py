"""Training on data: `train` and what it returns. Needs the packages of `resolvent[train]`."""

from .data import EMBEDDED as EMBEDDED
from .data import Data as Data
from .data import read as read
from .data import table as table
from .network import Model as Model
from .processes import processes as processes
from .processes import rank as rank
from .processes import same_for_all as same_for_all
from .report import forecast as forecast
from .report import pictures as pictures
from .report import scores as scores
from .report import summary as summary
from .run import Trained as Trained
from .run import open_run as open_run
from .run import train as train
from .search import search as search
from .searched import candidates_table as candidates_table
from .settings import is_unfinished as is_unfinished
