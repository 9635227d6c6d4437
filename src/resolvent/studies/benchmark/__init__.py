"""The benchmark: machines against the programs a user would write. Needs the packages of `resolvent[train]`."""

from .cases import AUTHORS as AUTHORS
from .figures import figures as figures
from .figures import read as read
from .figures import times as times
from .jets import run_jets as run_jets
from .measure import passes as passes
from .measure import run as run
from .measure import timed as timed
from .pruned import run_pruned as run_pruned
