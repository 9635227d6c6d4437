"""The paper reproduced, on one page. Needs the packages of `resolvent[train]`."""

from ._page import reproduce as reproduce
