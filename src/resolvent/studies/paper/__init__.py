"""The paper reproduced, on one page. Needs the packages of `resolvent[train]`."""

from .page import reproduce as reproduce
