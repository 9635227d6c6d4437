"""The benchmark: machines against the programs a user would write. Needs the packages of `resolvent[train]`."""

from .cases import AUTHORS as AUTHORS
from .figures import figures as figures
from .figures import read as read
from .figures import times as times
from .run import passes as passes
from .run import run as run
from .run import timed as timed
