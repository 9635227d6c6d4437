"""Random acyclic networks, the paper's network, and the arithmetic of points."""

import torch
from hypothesis import strategies as st
from tolerance import assert_equal
from torch import nn

import resolvent as rv

f64 = torch.float64


class Mix(nn.Module):
    """A smooth layer with parameters from and to any number of parts of dimension 2."""

    def __init__(self, reads: int, writes: int):
        super().__init__()
        self.reads, self.writes = reads, writes
        self.weight = nn.Parameter(torch.randn(2 * writes, 2 * max(reads, 1), dtype=f64))

    def forward(self, *xs):
        y = torch.tanh(torch.cat(xs, -1) @ self.weight.mT) if xs else self.weight[:, 0].expand(3, -1)
        return y.chunk(self.writes, -1) if self.writes > 1 else y


def layer(reads, writes):
    reads, writes = (names.split() for names in (reads, writes))
    return rv.Layer(Mix(len(reads), len(writes)), reads=reads, writes=writes if len(writes) > 1 else writes[0])


def the_papers_figure():
    f1, f2 = layer("x1 x2", "x3"), layer("x1", "x5")
    f3, f4, f5 = layer("x3", "x4"), layer("x4", "x5 x6 x7"), layer("x6", "x8")
    return f1, f2, f3, f4, f5


def random_point(f):
    return {name: torch.randn(3, 2, dtype=f64) for name in f.parts}


def plus(*points):
    total = {}
    for point in points:
        for name, value in point.items():
            total[name] = total[name] + value if name in total else value
    return total


def minus(point):
    return {name: -value for name, value in point.items()}


def assert_same_point(actual, expected):
    zero = torch.zeros(3, 2, dtype=f64)
    for name in {**actual, **expected}:
        assert_equal(actual.get(name, zero), expected.get(name, zero))


@st.composite
def networks(draw, names="abcdefgh"):
    """A random acyclic network, its layers in random order; layers read only earlier letters than they write."""
    layers = []
    for _ in range(draw(st.integers(1, 6))):
        first = draw(st.integers(1, len(names) - 1))
        writes = draw(st.lists(st.sampled_from(names[first:]), min_size=1, max_size=2, unique=True))
        earlier = names[: names.index(min(writes))]
        reads = draw(st.lists(st.sampled_from(earlier), min_size=0, max_size=3, unique=True))
        layers.append(layer(" ".join(reads), " ".join(writes)))
    return draw(st.permutations(layers))


def longest_path(layers):
    following = {f: [g for g in layers if rv.depends(g, f)] for f in layers}

    def length(f):
        return 1 + max((length(g) for g in following[f]), default=0)

    return max(map(length, layers), default=0)
