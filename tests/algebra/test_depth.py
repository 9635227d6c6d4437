"""Depth: cofiltrations, depth sequences, nilpotent operators, functions of known depth."""

from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
from cases import cases, randomize
from hypothesis import given
from hypothesis import strategies as st
from networks import assert_same_point, networks, random_point, the_papers_figure
from tolerance import assert_equal

import resolvent as rv
from resolvent.machine import annihilators

f64 = torch.float64


@contextmanager
def counted(f):
    """What the layers' modules are called with, from here on."""
    calls = []
    handles = [layer.module.register_forward_hook(lambda *call: calls.append(call)) for layer in f.layers]
    yield calls
    for handle in handles:
        handle.remove()


@given(networks())
def test_both_depth_sequences_end_at_the_resolvent(layers):
    """Theorem 1; the sweep evaluates each layer once, the iteration all of them at every step."""
    f = rv.Sum(layers)
    x0 = random_point(f)
    kinds: Any = {"sweep": len(layers), "iterate": len(layers) * f.depth}
    for kind, evaluations in kinds.items():
        with counted(f) as calls:
            f.resolvent(x0)
            before = len(calls)
            states = f.depth_sequence(x0, kind=kind)
        assert len(states) == f.depth + 1
        assert_same_point(states[0], x0)
        assert_same_point(states[-1], f(x0))
        assert len(calls) - 2 * before == evaluations


@given(networks())
def test_every_step_of_a_depth_sequence_is_right_modulo_the_cofiltration(layers):
    """Definition 3: π_i h_i is the same for both lifted sequences, and final."""
    f = rv.Sum(layers)
    x0 = random_point(f)
    h, sweep, iterate = f(x0), f.depth_sequence(x0, kind="sweep"), f.depth_sequence(x0, kind="iterate")
    for project, a, b in zip(f.cofiltration(), sweep, iterate, strict=True):
        for name in set(f.parts) - set(project(h)):
            assert_equal((a[name], b[name]), (h[name], h[name]))


@given(networks())
def test_levels_give_a_depth_cofiltration_and_its_quotients_one_of_the_dual(layers):
    """Definition 2 and Proposition 3."""
    f = rv.Sum(layers)
    h = f(random_point(f))
    chain = f.cofiltration()
    assert len(chain) == f.depth + 1
    assert rv.is_cofiltration(f, chain, at=h)
    assert rv.is_cofiltration(f.dual(h), annihilators(chain), at=random_point(f))
    assert not rv.is_cofiltration(f, (chain[0], *chain[2:]), at=h)


@given(cases())
def test_the_papers_chain_is_a_cofiltration_of_a_structured_machine(case):
    machine = case.machine
    y, z = case.points(2)
    chain = machine.cofiltration(y)
    assert len(chain) == case.depth + 1
    assert rv.is_cofiltration(machine, chain, at=(y, z))


def test_a_chain_that_is_too_short_is_no_cofiltration():
    machine = randomize(rv.DenseMachine((1, 1, 1), dtype=f64))
    y, z = torch.randn(2, 4, 3, dtype=f64)
    chain = machine.cofiltration()
    assert rv.is_cofiltration(machine, chain, at=(y, z))
    for i in range(len(chain)):
        assert not rv.is_cofiltration(machine, chain[:i] + chain[i + 1 :], at=(y, z))
    assert not rv.is_cofiltration(machine, (), at=(y, z))


@given(st.integers(1, 6), st.integers(0, 2**16))
def test_a_nilpotent_operator_is_a_machine_in_any_basis(n, seed):
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.diag((torch.rand(n - 1, generator=generator) > 0.4).to(f64), 1)
    basis, _ = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=f64))
    f = rv.LinearMachine(1e-9 * basis @ blocks @ basis.mT)
    index = next(k for k in range(1, n + 1) if not torch.linalg.matrix_power(blocks, k).any())
    assert f.depth == index - 1
    assert [kernel.shape[1] for kernel in f.kernels()] == [
        n - int(torch.linalg.matrix_rank(torch.linalg.matrix_power(blocks, k))) for k in range(1, index + 1)
    ]
    x0 = torch.randn(3, n, generator=generator, dtype=f64)
    h = f(x0)
    assert_equal(h - f.endofunction(h), x0)
    assert f.dual().depth == f.depth


def test_the_sum_of_nilpotent_operators_with_vanishing_product_is_nilpotent():
    """Remark 2: L1 L2 = 0 bounds the depth of the sum by the sum of depths."""
    first = torch.zeros(5, 5, dtype=f64)
    second = first.clone()
    first[0, 1] = first[1, 2] = 1
    second[2, 3] = 1
    second[3, 4] = -2
    assert (second @ first == 0).all()
    depths = [rv.LinearMachine(matrix).depth for matrix in (first, second, first + second)]
    assert depths == [2, 2, 4]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n", [8, 20])
def test_depth_does_not_hang_on_the_scale_of_entries(n, dtype):
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        matrix = torch.randn(n, n, generator=generator, dtype=dtype).triu(1)
        f = rv.LinearMachine(matrix)
        assert f.depth == f.dual().depth == n - 1
    badly_scaled = torch.tensor([[0, 1e10, 0], [0, 0, 1e-10], [0, 0, 0]], dtype=dtype)
    assert rv.LinearMachine(badly_scaled).depth == 2
    assert rv.LinearMachine(torch.zeros(3, 3, dtype=dtype)).depth == 0


def test_an_operator_that_is_not_nilpotent_is_refused_with_evidence():
    matrix = torch.tensor([[0.0, 1, 0], [0, 0, 1], [1e-4, 0, 0]], dtype=f64)
    with pytest.raises(
        rv.NotAMachine, match=r"its power 4 has entries up to 1.00e-04, \d.\de\+\d\d times what would be"
    ):
        rv.LinearMachine(matrix)
    for seed in range(20):
        S, D = torch.randn(2, 6, 6, dtype=f64, generator=torch.Generator().manual_seed(seed))
        with pytest.raises(rv.NotAMachine, match="not nilpotent"):
            rv.LinearMachine(100 * S @ torch.diag(0.1 * D[0]) @ torch.linalg.inv(S))
    with pytest.raises(ValueError, match=r"matrix must be square and of floating point, got \(2, 3\)"):
        rv.LinearMachine(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"x0 has shape \(5,\), the machine needs \(..., 3\)"):
        rv.LinearMachine(torch.zeros(3, 3))(torch.ones(5))


@pytest.mark.unchecked  # type checks would refuse it first
def test_a_list_is_no_operator():
    with pytest.raises(TypeError, match="matrix must be a tensor, got list"):
        rv.LinearMachine(cast(Any, [[0.0, 1.0], [0.0, 0.0]]))


def test_a_function_of_known_depth_is_solved_by_its_depth_sequence():
    f = the_papers_figure()
    total = f[0] + f[1] + f[2] + f[3] + f[4]
    x0 = random_point(total)
    machine = rv.EndofunctionMachine(total.endofunction, depth=4)
    assert_same_point(machine(x0), total(x0))
    rv.verify(machine, x0)
    shallow = rv.EndofunctionMachine(total.endofunction, depth=3)
    with pytest.raises(rv.NotAMachine, match=r"f is not of depth 3 at x0: relative residual \d\.\d+e[-+]\d+ of h - x0"):
        rv.verify(shallow, x0)
    with pytest.raises(ValueError, match="depth must be an integer of at least 0, got -1"):
        rv.EndofunctionMachine(torch.sin, depth=-1)
    with pytest.raises(ValueError, match=r"f must map X to X, but gives \(1, 2\) at a point of shape \(2, 2\)"):
        rv.EndofunctionMachine(lambda x: x[:1], depth=1)(torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"f must map X to X, but gives \(1,\) in b at a point of shape \(2,\)"):
        rv.EndofunctionMachine(lambda x: {"b": x["a"][:1]}, depth=1)({"a": torch.ones(2), "b": torch.ones(2)})


def test_verify_sees_nan():
    machine = rv.EndofunctionMachine(lambda x: {"b": x["a"] * float("nan")}, depth=1)
    with pytest.raises(rv.NotAMachine, match="residual nan"):
        rv.verify(machine, {"a": torch.ones(2)})


def test_verify_sees_a_solution_that_depends_on_the_start():
    rv.verify(rv.EndofunctionMachine(torch.zeros_like, depth=0), torch.zeros(2))
    with pytest.raises(rv.NotAMachine, match="another start"):
        rv.verify(rv.EndofunctionMachine(lambda x: torch.where(x == 0, 0.0, 1.0), depth=0), torch.zeros(2))
