"""The command line: train on data, search, predict, show, export, measure, and reproduce the paper."""

import logging
import os
import sys
import warnings

from . import data as data
from . import studies as studies
from .command import app
from .command import console as console


def run() -> None:
    """The command; what is wrong with the input is said in one line."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated")  # PyTorch's own, in ONNX export
    try:
        app()
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name is not None:
            raise  # to `main`, which knows what to install
        if os.environ.get("RANK", "0") == "0":
            print("error: " + " ".join(str(error).split()), file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
