"""The smallest numbers that know some derivatives: algebras with the known dimensions, and no smaller ones."""

from fractions import Fraction
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import resolvent as rv
from resolvent.jets.algebra import basis, coordinates, lead_of, products
from resolvent.jets.language import operators
from resolvent.structure.numbers import Numbers, Term


def known(operators):
    return basis(frozenset(frozenset(P.items()) for P in operators))


def powers_of_laplacian(power: int, dimension: int):
    return rv.jets.derivatives._power_of_laplacian(power, dimension)


NAMES = "txyz"
monomials = st.lists(st.integers(0, 3), min_size=0, max_size=4).map(lambda letters: tuple(sorted(letters)))
coefficients = st.fractions(-3, 3, max_denominator=4).filter(bool)
polynomials = st.dictionaries(monomials, coefficients, min_size=1, max_size=4)
some_operators = st.lists(polynomials, min_size=1, max_size=3)


def table(terms, size):
    """e_i e_j as {k: c}, exactly, and with 1."""
    rows = {(i, j): {} for i, j in product(range(size), repeat=2)}
    for n in range(size):
        rows[0, n][n] = rows[n, 0][n] = Fraction(1)
    for i, j, k, c in terms:
        rows[i, j][k] = Fraction(c)
    return rows


def times(rows, a, b):
    total = {}
    for (i, x), (j, y) in product(a.items(), b.items()):
        for k, c in rows[i, j].items():
            total[k] = total.get(k, 0) + x * y * c
    return {k: c for k, c in total.items() if c}


@given(some_operators)
def test_the_numbers_are_an_associative_commutative_algebra_with_a_nilpotent_part(operators):
    b = known(operators)
    rows, size = table(products(b), len(b)), len(b)
    for i, j in product(range(size), repeat=2):
        assert rows[i, j] == rows[j, i]
    for i, j, k in product(range(1, size), repeat=3):
        assert times(rows, rows[i, j], {k: Fraction(1)}) == times(rows, {i: Fraction(1)}, rows[j, k])
    order = Numbers(size, products(b)).order if size > 1 else 0
    power = dict.fromkeys(range(1, size), Fraction(1))
    for _ in range(order):
        power = times(rows, power, dict.fromkeys(range(1, size), Fraction(1)))
    assert not power  # of so many factors, all products vanish


@given(some_operators)
def test_the_pairing_with_the_operators_has_no_kernel_so_no_smaller_numbers_know_them(operators):
    """A number a with P(a b) = 0 for every operator P and all b would be zero: no quotient can know them."""
    b = known(operators)
    rows, size = table(products(b), len(b)), len(b)
    pairing = [
        [sum(P.get(k, 0) * c for k, c in rows[i, j].items()) for P in asked for j in range(size)]
        for asked in [[coordinates(P, b) or {} for P in [*operators, {(): Fraction(1)}]]]
        for i in range(size)
    ]
    assert torch.linalg.matrix_rank(torch.tensor(pairing, dtype=torch.float64)) == size


@given(some_operators)
def test_a_reduced_basis_has_each_lead_once_and_spans_the_derivatives_of_all(operators):
    b = known(operators)
    leads = [lead_of(P) for P in b]
    assert len(set(leads)) == len(leads)
    assert all((lead in P) == (P is Q) for Q, lead in zip(b, leads, strict=True) for P in b)
    for P in operators:
        found = coordinates(P, b)
        total = {}
        assert found is not None
        for k, c in found.items():
            for monomial, d in b[k].items():
                total[monomial] = total.get(monomial, 0) + c * d
        assert {m: c for m, c in total.items() if c} == P


@pytest.mark.parametrize(
    ("text", "size", "count"),
    [
        ("t, x, xx", 4, 8),
        ("xx + yy", 4, 9),
        ("xxxx + 2 xxyy + yyyy", 9, 42),
        ("t, xxx", 5, None),
        ("tx, xxxx", 7, 21),
        ("t + xx + 3 tx", 4, None),
        ("t", 2, 3),
        ("tt, tx, xx", 6, None),
    ],
)
def test_dimensions_and_products_are_the_known_ones(text, size, count):
    b = known(operators(text, NAMES))
    assert len(b) == size
    assert count is None or len(products(b)) + 2 * size - 1 == count


@pytest.mark.parametrize("dimension", [1, 2, 3, 5, 10])
def test_the_laplacian_has_d_plus_two_numbers_and_the_biharmonic_one_for_each_pair_besides(dimension):
    assert powers_of_laplacian(1, dimension).size == dimension + 2
    assert powers_of_laplacian(2, dimension).size == 2 + 2 * dimension + dimension * (dimension + 1) // 2


@pytest.mark.parametrize("order", [1, 2, 7])
def test_truncated_series_have_one_number_for_each_power(order):
    assert rv.jet(torch.zeros(1, 1), order, names="x").numbers.size == order + 1


def test_numbers_that_are_not_nilpotent_are_refused():
    with pytest.raises(ValueError, match="not nilpotent"):
        Numbers(2, (Term(1, 1, 1, 1),))


def test_the_laplacian_in_a_hundred_dimensions_has_a_hundred_and_two_numbers():
    assert powers_of_laplacian(1, 100).size == 102
