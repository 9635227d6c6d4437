"""Each message about a bad jet names what came and what was needed."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import resolvent as rv

pytestmark = pytest.mark.unchecked  # deliberate bad input

x = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
net: Any = rv.Network.dense(2, (4,), 1)
integers = torch.ones(3, 2, dtype=torch.long)


def jet(text: Any = "t, xx", points: Any = x, names: Any = "tx", directions: Any = None) -> Any:
    return rv.jet(points, text, names=names, directions=directions)


def along(*directions: Any) -> Any:
    return jet("aa", names="a", directions=directions)


WAY_OUT = "arithmetic, pointwise functions, what moves or sums entries, nn.Linear, nn.Conv*d, nn.Bilinear, machines and networks of those have one; for the rest, differentiate tensors by torch.func"  # noqa: E501  # one line of a message
BAD = {
    "names that the points lack": (lambda: jet("y"), ValueError, "'y' is none of the names t, x:\n  y\n  ^"),
    "more names than channels": (
        lambda: jet(names="txy"),
        ValueError,
        "points of shape (3, 2) need one name for each channel, the last axis: names='txy'",
    ),
    "a name twice": (
        lambda: jet(names="tt"),
        ValueError,
        "names must be different letters, one for each variable, got 'tt'",
    ),
    "order zero": (lambda: jet(0), ValueError, "the order of derivatives must be at least 1, got 0"),
    "a negative order": (lambda: jet(-1), ValueError, "the order of derivatives must be at least 1, got -1"),
    "a list of derivatives": (lambda: jet(["t"]), TypeError, "the order of derivatives must be an integer, got ['t']"),
    "an order where a text is needed": (
        lambda: rv.derivatives(net, x, 2, names="tx"),  # pyright: ignore
        TypeError,
        "derivatives must be a text like 'x, xx', got 2",
    ),
    "points of integers": (
        lambda: jet(points=integers),
        TypeError,
        "points are torch.int64, derivatives need floating point: points.float()",
    ),
    "integers in a Laplacian": (
        lambda: rv.laplacian(net, integers),
        TypeError,
        "points are torch.int64, derivatives need floating point: points.float()",
    ),
    "an array": (lambda: jet(points=x.numpy()), TypeError, "points must be a tensor, got ndarray"),
    "a number for points": (
        lambda: rv.laplacian(net, torch.tensor(1.0)),
        ValueError,
        "points have no axis: the last one is that of the variables",
    ),
    "no samples": (lambda: rv.laplacian(net, x, samples=0), ValueError, "samples must be at least 1, got 0"),
    "two directions for one name": (
        lambda: along(x, x),
        ValueError,
        "directions must be a list of 1 tensors, one for each of names='a', got 2",
    ),
    "a direction that is no tensor": (
        lambda: along(1.0),
        TypeError,
        "the direction 'a' is float, the points are torch.float32 on cpu",
    ),
    "a direction of another precision": (
        lambda: along(x.double()),
        TypeError,
        "the direction 'a' is torch.float64 on cpu, the points are torch.float32 on cpu",
    ),
    "a direction of another shape": (
        lambda: along(torch.ones(7)),
        ValueError,
        "the direction 'a' has shape (7,), the points have (3, 2)",
    ),
    "a direction too many": (
        lambda: jet("aa", names="a", directions=dict(a=x, b=x)),
        ValueError,
        "directions are named a, b, needed is one for each of names='a'",
    ),
    "nothing but the value": (
        lambda: jet("1"),
        ValueError,
        "'1' asks for no derivative: the value is f(points)",
    ),
    "an axis that is not there": (lambda: torch.cat([jet(), jet()], 2), IndexError, "dim 2 is none of the 2 axes"),
    "a stack along the numbers": (
        lambda: torch.stack([jet(), jet()], -4),
        IndexError,
        "dim -4 is none of the 3 axes",
    ),
    "parts along no axis": (lambda: jet().split(1, dim=5), IndexError, "dim 5 is none of the 2 axes"),
    "a jet of integers": (lambda: jet().to(torch.int64), TypeError, "a jet has no derivatives of torch.int64"),
    "vmap over a jet": (
        lambda: torch.vmap(net)(jet()),
        TypeError,
        "vmap would map the numbers of a jet: map over points, and make the jet inside",
    ),
    "a jet of other numbers": (
        lambda: jet() + jet("x"),
        ValueError,
        "jets over different numbers do not mix: 4 numbers, which know 1, t, x, xx and 2 numbers, which know 1, x",
    ),
    "a derivative that was not asked for": (
        lambda: net(jet())["tt"],
        ValueError,
        "'tt' is not known to these 4 numbers, which know 1, t, x, xx: ask rv.jet for it",
    ),
    "a machine on another device": (
        lambda: rv.Network.dense(2, (4,), 1, device="meta")(jet()),
        ValueError,
        "y0 is on cpu, the machine is on meta",
    ),
    "a machine of another precision": (
        lambda: net(jet(points=x.double())),
        TypeError,
        "y0 is torch.float64, the machine is torch.float32",
    ),
    "a layer without a rule": (
        lambda: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4))(jet()),
        TypeError,
        f"jets have no rule for batch_norm of BatchNorm1d: {WAY_OUT}",
    ),
    "a function without a rule": (
        lambda: torch.softmax(jet(), -1),
        TypeError,
        f"jets have no rule for softmax: {WAY_OUT}",
    ),
    "a function that forgets the jet": (
        lambda: rv.derivatives(lambda p: p.value, x, "t", names="tx"),
        TypeError,
        "f gave Tensor for a jet: it must be made of functions that take one",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_by_name(what):
    call, kind, message = BAD[what]
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        call()


def test_arrays_and_comparisons_are_those_of_tensors():
    p, ones = jet(), np.ones((3, 2), dtype=np.float32)
    assert torch.equal((ones + p)["xx"], (1 + p)["xx"])
    assert (p == x).all()
    assert (p != 2 * p).all()
    assert torch.equal(abs(-p)[""], x)


def test_a_tensor_times_a_jet_is_refused_by_its_operator_in_compiled_code_and_right_by_its_function():
    """Which the compiler shows both ways round as the same call."""
    W = torch.tensor([[1.0, 2.0], [3.0, 4.0]])

    def function(x):
        product: Any = torch.matmul(jet("t", x), W)
        return product["t"]

    compiled = torch.compile(function, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), function(x))
    with pytest.raises(Exception, match=r"torch\.matmul\(a, b\) in compiled code"):
        torch.compile(lambda x: (jet("t", x) @ W)["t"], fullgraph=True, backend="eager")(x)
    torch.compiler.reset()
