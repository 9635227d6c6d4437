"""The laws of the family, over machines of all kinds, the derivative machines of each included."""

import pytest
import torch
from kinds import ALL_KINDS, Kind
from tolerance import assert_equal
from torch import Tensor

import resolvent as rv
from resolvent import machine as family
from resolvent.machine import annihilators, plus, transformed

pytestmark = pytest.mark.parametrize("name", ALL_KINDS)


def assert_same(x, other):
    """Equal points; what a mapping lacks is zero."""
    if isinstance(x, dict):
        both = {**x, **other}
        names = [(x.get(n, torch.zeros_like(v)), other.get(n, torch.zeros_like(v))) for n, v in both.items()]
        assert_equal(*zip(*names, strict=True))
    else:
        assert_equal(x, other)


def minus(x, other):
    return plus(x, transformed(other, torch.neg))


def test_it_is_a_machine_and_its_derivatives_are_linear_machines(name):
    kind = ALL_KINDS[name]()
    x = kind.draw()
    assert isinstance(kind.machine, rv.Machine)
    assert isinstance(kind.machine.tangent(x), rv.Linear)
    assert isinstance(kind.machine.dual(x), rv.Linear)


def test_the_resolvent_is_a_right_inverse_of_id_minus_f(name):
    """Definition 1: h = x0 + f(h)."""
    kind = ALL_KINDS[name]()
    x0 = kind.draw()
    h = kind.machine.resolvent(x0)
    assert_same(minus(h, kind.machine.endofunction(h)), x0)


def test_the_resolvent_is_a_left_inverse_of_id_minus_f(name):
    kind = ALL_KINDS[name]()
    x = kind.draw()
    assert_same(kind.machine.resolvent(minus(x, kind.machine.endofunction(x))), x)


def test_the_depth_sequence_ends_at_the_resolvent_from_any_start(name):
    """Theorem 1, and uniqueness with it."""
    kind = ALL_KINDS[name]()
    x0, elsewhere = kind.draw(), kind.draw()
    h = kind.machine.resolvent(x0)
    for start in (None, kind.machine.endofunction(elsewhere)):
        states = kind.machine.depth_sequence(x0, start)
        assert len(states) == kind.machine.depth_at(x0) + 1
        assert_same(states[-1], h)
    rv.verify(kind.machine, x0)


def test_the_tangent_machine_is_the_derivative_of_f_and_its_resolvent_that_of_the_resolvent(name):
    """Proposition 2."""
    kind = ALL_KINDS[name]()
    f, x, dx = kind.machine, kind.draw(), kind.draw()
    h, dh = torch.func.jvp(f.resolvent, (x,), (dx,))[:2]
    tangent = f.tangent(h)
    assert_same(tangent.resolvent(dx), dh)
    assert_same(tangent.endofunction(dx), family.Tangent(f, h).endofunction(dx))
    assert tangent.depth_at(dx) <= f.depth_at(x)


def test_the_dual_machine_is_dual_and_so_is_its_resolvent(name):
    """Proposition 2: <Df x, ξ> = <x, Df* ξ>, and for their resolvents, which backpropagates."""
    kind = ALL_KINDS[name]()
    x, dx, cotangent = kind.draw(), kind.draw(), kind.draw()
    tangent, dual = kind.machine.tangent(x), kind.machine.dual(x)
    for verb in ("endofunction", "resolvent"):
        left = kind.pairing(getattr(tangent, verb)(dx), cotangent)
        assert_equal(left, kind.pairing(dx, getattr(dual, verb)(cotangent)))


def test_the_dual_of_the_dual_acts_as_the_tangent_whose_tangent_is_itself(name):
    kind = ALL_KINDS[name]()
    x, dx = kind.draw(), kind.draw()
    tangent = kind.machine.tangent(x)
    for other in (tangent.dual().dual(), kind.machine.dual(x).dual(), tangent.tangent(x)):
        assert_same(other.endofunction(dx), tangent.endofunction(dx))
        assert_same(other.resolvent(dx), tangent.resolvent(dx))


def test_a_cofiltration_is_a_chain_of_projections_as_long_as_the_depth(name):
    """Definition 2: P_0 f = f, P_i Df P_{i-1} = Df P_{i-1}, d = depth; Proposition 3: so it is for the derivatives."""
    kind = ALL_KINDS[name]()
    x = kind.draw()
    if "function" in name:
        with pytest.raises(ValueError, match="of a EndofunctionMachine nothing but its depth is known"):
            kind.machine.cofiltration(x)
        return
    chain = kind.machine.cofiltration(x)
    assert len(chain) == kind.machine.depth_at(x) + 1
    assert rv.is_cofiltration(kind.machine, chain, at=x)
    assert rv.is_cofiltration(kind.machine.tangent(x), chain, at=x)
    if not kind.swapped:
        assert rv.is_cofiltration(kind.machine.dual(x), annihilators(chain), at=x)
    assert rv.is_cofiltration(kind.machine.dual(x), kind.machine.dual(x).cofiltration(x), at=x)
    assert not rv.is_cofiltration(kind.machine, chain[:-1], at=x)


def test_missing_parts_are_zero(name):
    kind = ALL_KINDS[name]()
    x = kind.draw()
    if isinstance(x, Tensor) or "function" in name:
        return
    if isinstance(x, dict):
        inputs = {n: x[n] for n in kind.machine.inputs}
        assert_same(kind.machine.resolvent(inputs), kind.machine.resolvent({n: 0 * x[n] for n in x} | inputs))
    else:
        y, z = x
        assert_same(kind.machine.resolvent((y, None)), kind.machine.resolvent((y, 0 * z)))
        assert_same(kind.machine.resolvent((None, z)), kind.machine.resolvent((0 * y, z)))
        assert_same(kind.machine.endofunction((None, z)), kind.machine.endofunction((0 * y, z)))


def test_torch_func_sees_the_derivatives_of_the_endofunction(name):
    kind = ALL_KINDS[name]()
    x, dx, cotangent = kind.draw(), kind.draw(), kind.draw()
    f, (tangent, dual) = kind.machine.endofunction, (family.Tangent(kind.machine, x), family.Dual(kind.machine, x))
    assert_same(torch.func.jvp(f, (x,), (dx,))[1], tangent.endofunction(dx))
    plain = Kind(kind.machine, kind.draw)  # in whose dual u belongs to y
    assert_equal(plain.pairing(tangent.endofunction(dx), cotangent), plain.pairing(dx, dual.endofunction(cotangent)))
