"""A reader of machines in NumPy, from docs/specification.md alone. Run: python examples/reader.py FOLDER INPUT.npy"""

import hashlib
import json
import math
import sys
from itertools import product
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

erf = np.vectorize(math.erf, otypes=[float])
SELU, ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
ACTIVATIONS = {
    "identity": lambda y: y,
    "tanh": np.tanh,
    "sigmoid": lambda y: 1 / (1 + np.exp(-y)),
    "relu": lambda y: np.maximum(y, 0),
    "leaky_relu": lambda y: np.where(y > 0, y, 0.01 * y),
    "elu": lambda y: np.where(y > 0, y, np.expm1(np.minimum(y, 0))),
    "selu": lambda y: SELU * np.where(y > 0, y, ALPHA * np.expm1(np.minimum(y, 0))),
    "gelu": lambda y: y / 2 * (1 + erf(y / math.sqrt(2))),
    "gelu_tanh": lambda y: y / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))),
    "silu": lambda y: y / (1 + np.exp(-y)),
    "softplus": lambda y: np.where(y > 20, y, np.log1p(np.exp(np.minimum(y, 20)))),
    "softsign": lambda y: y / (1 + np.abs(y)),
    "sin": np.sin,
}


def read(folder):
    """A function from x to z, for dense, convolutional and recurrent machines; NumPy has no BF16."""
    spec = json.loads((Path(folder) / "machine.json").read_text(encoding="utf-8"))
    weights = Path(folder) / "weights.safetensors"
    if spec["format"] != "resolvent" or spec["version"] not in (1, 2):
        raise ValueError("not a machine of version 1 or 2")
    if hashlib.sha256(weights.read_bytes()).hexdigest() != spec["weights_sha256"]:
        raise ValueError("other weights than the specification names")
    tensors = load_file(weights)
    W, ends = tensors["weight"], np.cumsum(spec["sizes"])
    blocks = [slice(end - size, end) for size, end in zip(spec["sizes"], ends, strict=True)]
    if spec["version"] == 2:
        W = whole(spec, W)
    return lambda x: solve(spec, W, tensors.get("bias", np.zeros(ends[-1], W.dtype)), blocks, x)


def whole(spec, entries):
    """W, zero where it is not read, of its entries that are."""
    lags, blocks = range(spec.get("lags", 0) + 1), range(len(spec["sizes"]))
    edges = np.array([[[connected(spec, lag, i, j) for j in blocks] for i in blocks] for lag in lags])
    edges = edges if spec["kind"] == "recurrent" else edges[0]
    read = edges.repeat(spec["sizes"], -2).repeat(spec["sizes"], -1)
    for size in spec.get("kernel_size", ()):
        read = read[..., None].repeat(size, -1)
    W = np.zeros(read.shape, entries.dtype)
    W[read] = entries
    return W


def solve(spec, W, bias, blocks, x):
    recurrent, conv = spec["kind"] == "recurrent", spec["kind"] == "conv"
    axis = 1 if conv else x.ndim - 1
    missing = [(0, len(bias) - x.shape[axis] if a == axis else 0) for a in range(x.ndim)]
    y = np.moveaxis(np.pad(x.astype(W.dtype), missing), axis, -1) + bias  # channels last
    z = np.zeros_like(y)
    for t in range(y.shape[1] if recurrent else 1):
        for i, to in enumerate(blocks):
            here = (slice(None), t) if recurrent else (...,)
            for j, source in enumerate(blocks):
                for lag in range(spec["lags"] + 1 if recurrent else 1):
                    if not connected(spec, lag, i, j) or lag > t:
                        continue
                    if recurrent:
                        y[:, t, to] += z[:, t - lag, source] @ W[lag, to, source].T
                    elif not conv:
                        y[..., to] += z[..., source] @ W[to, source].T
                    else:
                        padded = np.pad(z[..., source], [(0, 0), *spec["padding"], (0, 0)])
                        for k in product(*map(range, spec["kernel_size"])):
                            window = tuple(slice(s, s + n) for s, n in zip(k, z.shape[1:-1], strict=True))
                            y[..., to] += padded[(slice(None), *window)] @ W[(to, source, *k)].T
            z[(*here, to)] = ACTIVATIONS[spec["activation"][i]](y[(*here, to)])
    return np.moveaxis(z, -1, axis)


def connected(spec, lag, i, j):
    long = lag >= spec.get("time_block", 1)
    named = {"all": j < i or long, "sequential": j == i if long else j == i - 1}
    given = spec["connections"]
    return named[given] if isinstance(given, str) else (given[lag] if spec.get("lags") else given)[i][j]


if __name__ == "__main__":
    print(read(sys.argv[1])(np.load(sys.argv[2])))
