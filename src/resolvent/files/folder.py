"""A machine on disk: `machine.json` says what it is, `weights.safetensors` holds its numbers. No code, no pickle.

The specification names the weights by their SHA-256. Both files are written aside and then moved into place: the
specification as `machine.json.new`, the weights, and the specification again. A writer who is killed leaves the old
machine or the new one: the weights, and one of the two specifications that names them. One writer at a time.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

FORMAT, VERSION = "resolvent", 2
SPECIFICATION, WEIGHTS = "machine.json", "weights.safetensors"
NEXT = f"{SPECIFICATION}.new"
TYPES = {"F64", "F32", "F16", "BF16"}
LARGEST_SPECIFICATION = 16 * 2**20


def write(folder: str | os.PathLike, specification: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".save-", dir=folder) as directory:
        aside = {name: Path(directory) / name for name in (SPECIFICATION, WEIGHTS)}
        save_file({name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}, aside[WEIGHTS])
        head = {"format": FORMAT, "version": VERSION, "weights_sha256": _sha256(aside[WEIGHTS])}
        aside[SPECIFICATION].write_text(json.dumps(head | specification, indent=1) + "\n", encoding="utf-8")
        for path in aside.values():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        aside[SPECIFICATION].replace(folder / NEXT)
        aside[WEIGHTS].replace(folder / WEIGHTS)
    (folder / NEXT).replace(folder / SPECIFICATION)


def replace_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    aside = path.with_name(f"{path.name}.new")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)


def read(folder: str | os.PathLike) -> tuple[dict[str, Any], Path, int]:
    """The specification without its head, the path of the weights that belong to it, and its version."""
    folder = Path(folder)
    weights, found = folder / WEIGHTS, [folder / name for name in (SPECIFICATION, NEXT) if (folder / name).is_file()]
    for path, exists in ((folder / SPECIFICATION, found), (weights, weights.is_file())):
        if not exists:
            raise FileNotFoundError(f"{path} does not exist: a machine's folder has {SPECIFICATION} and {WEIGHTS}")
    specification, digest = _specification(found[0]), _sha256(weights)
    if specification["weights_sha256"] != digest and len(found) == 2:
        specification = _specification(found[1])
    if specification.pop("weights_sha256") != digest:
        raise ValueError(f"{weights} is not the file that {SPECIFICATION} names: it was changed, cut off or exchanged")
    return specification, weights, specification.pop("version")


def tensors(path: Path, expected: Mapping[str, tuple[int, ...]], device: Any) -> dict[str, Tensor]:
    """The tensors of a file, if it has exactly those names and shapes; nothing is allocated before that is known."""
    try:
        with safe_open(path, "pt", device=str(device)) as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 a file is no mapping
            if shapes != expected:
                raise ValueError(f"{path} has tensors {shapes}, the machine needs {dict(expected)}")
            types = {name: file.get_slice(name).get_dtype() for name in expected}
            if not set(types.values()) <= TYPES:
                raise ValueError(
                    f"{path} has tensors of types {types}, a machine needs one of {', '.join(sorted(TYPES))}"
                )
            return {name: file.get_tensor(name) for name in expected}
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from None


def _specification(path: Path) -> dict[str, Any]:
    if path.stat().st_size > LARGEST_SPECIFICATION:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes, at most {LARGEST_SPECIFICATION:,} are read")
    try:
        specification = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(specification, dict) or specification.pop("format", None) != FORMAT:
        raise ValueError(f'{path} is not the specification of a machine: it needs "format": "{FORMAT}"')
    version = specification.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise ValueError(f"{path} has version {version!r}, this library reads versions up to {VERSION}")
    if not isinstance(specification.get("weights_sha256"), str):
        raise ValueError(f'{path} has no "weights_sha256"')
    return specification


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
