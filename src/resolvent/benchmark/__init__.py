"""The benchmark: machines against the programs a user would write. Needs the packages of `resolvent[train]`."""

from ._cases import AUTHORS as AUTHORS
from ._figures import figures as figures
from ._figures import read as read
from ._figures import times as times
from ._run import passes as passes
from ._run import run as run
from ._run import timed as timed
