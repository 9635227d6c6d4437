"""One list of machines of all kinds, with a point of each: the laws of the family run over it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from cases import ALL_MACHINES, Case, randomize
from networks import random_point, the_papers_figure
from torch import Tensor

import resolvent as rv
from resolvent.machine import Point, transformed
from resolvent.structure.jet import Jet
from resolvent.structure.numbers import Numbers

f64: Any = dict(dtype=torch.float64)
LANGUAGE = {"the Laplacian": "xx + yy", "the biharmonic": "xxxx + 2 xxyy + yyyy"}


@dataclass
class Kind:
    """A machine, what draws its points, and whether its dual has the paper's letters: u for z, and v for y."""

    machine: Any
    draw: Callable[[], Point]
    swapped: bool = False

    def pairing(self, x: Point, cotangent: Point) -> Tensor:
        if isinstance(x, Jet):
            return (x.coefficients * cotangent.coefficients).sum()
        if isinstance(x, Tensor):
            return (x * cotangent).sum()
        if isinstance(x, dict):
            return torch.stack([self.pairing(x[name], cotangent[name]) for name in x.keys() & cotangent.keys()]).sum()
        halves = zip(x, cotangent[:: -1 if self.swapped else 1], strict=True)
        return torch.stack([self.pairing(a, b) for a, b in halves]).sum()


def structured(case: Case) -> Kind:
    return Kind(case.machine, lambda: case.points(2), swapped=True)


def known(name: str) -> Kind:
    case = ALL_MACHINES[name]()
    randomize(case.machine)
    return structured(case)


def layer() -> Kind:
    f = rv.Layer(lambda a, b: (a * b, a.sin()), reads=("a", "b"), writes=("c", "d"))
    return Kind(f, lambda: {name: torch.randn(2, **f64) for name in f.parts})


def total() -> Kind:
    f = rv.Sum(the_papers_figure())
    return Kind(f, lambda: random_point(f))


def nilpotent() -> Kind:
    basis, _ = torch.linalg.qr(torch.randn(4, 4, **f64))
    blocks = torch.diag(torch.tensor([1.0, 0, 2], **f64), 1)
    return Kind(rv.LinearMachine(basis @ blocks @ basis.mT), lambda: torch.randn(3, 4, **f64))


def shift(x: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(x[:1]), x[:-1].sin()])


def pair(x: Point) -> Point:
    y, z = x
    return 0 * y, y.tanh() + 0 * z


BASIC: dict[str, Callable[[], Kind]] = {
    **{name: (lambda name=name: known(name)) for name in ALL_MACHINES},
    "layer": layer,
    "sum": total,
    "nilpotent": nilpotent,
    "function of a tensor": lambda: Kind(rv.EndofunctionMachine(shift, depth=3), lambda: torch.randn(4, 2, **f64)),
    "function of a pair": lambda: Kind(rv.EndofunctionMachine(pair, depth=1), lambda: (*torch.randn(2, 3, **f64),)),
    "function of a mapping": lambda: Kind(
        rv.EndofunctionMachine(lambda x: {"b": x["a"].exp()}, depth=1), lambda: {n: torch.randn(2, **f64) for n in "ab"}
    ),
}


NUMBERS = dict(series=rv.jet(torch.zeros(1, 1), 3, names="x").numbers)
NUMBERS |= {name: rv.jet(torch.zeros(1, 2), text, names="xy").numbers for name, text in LANGUAGE.items()}


def over(kind: Kind, numbers: Numbers) -> Kind:
    """The same machine, of points over numbers: its extension to X ⊗ A."""

    def jets(x: Tensor) -> Jet:
        return Jet(torch.stack([x, *torch.randn(numbers.size - 1, *x.shape, **f64) / 4]), numbers)

    return Kind(kind.machine, lambda: transformed(kind.draw(), jets), kind.swapped)


OVER_NUMBERS = {
    f"{name}, over {which}": (lambda name=name, which=which: over(BASIC[name](), NUMBERS[which]))
    for name, which in (
        ("dense", "the biharmonic"),
        ("dense, some connections", "series"),
        ("dense, custom activation", "the Laplacian"),
        ("conv", "series"),
        ("conv, two axes, some connections", "the Laplacian"),
        ("recurrent", "the biharmonic"),
        ("recurrent, time blocks", "series"),
        ("graph", "the Laplacian"),
        ("sum", "series"),
    )
}
BASIC |= OVER_NUMBERS


def derived(name: str, verb: str) -> Kind:
    """The tangent or the dual machine at a point where the machine solves."""
    kind = BASIC[name]()
    return Kind(getattr(kind.machine, verb)(kind.machine.resolvent(kind.draw())), kind.draw, kind.swapped)


ALL_KINDS = BASIC | {
    f"{verb} of {name}": (lambda name=name, verb=verb: derived(name, verb))
    for name in BASIC
    for verb in ("tangent", "dual")
}
