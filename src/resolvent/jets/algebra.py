"""The smallest numbers that know some derivatives: exact, and each made once.

A differential operator with constant coefficients is a polynomial in ∂. Leibniz' rule says
P(∂)(fg) = Σ_a (∂_ξ^a P)(∂) f · ∂^a g / a!, so whoever is to know P(∂) of products must know the derivatives of P by its
own variables: the span of those, of all operators, is the least that is closed under products. Its dual is the apolar
algebra of the operators.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from math import comb, prod

from ..structure.numbers import Term

Monomial = tuple[int, ...]
"""The variables of a product, in order: ∂_0 ∂_0 ∂_2 is (0, 0, 2)."""
Polynomial = Mapping[Monomial, Fraction]
Frozen = frozenset[tuple[Monomial, Fraction]]


def derivative(P: Polynomial, variable: int) -> dict[Monomial, Fraction]:
    """∂P/∂ξ."""
    result = {}
    for monomial, c in P.items():
        power = monomial.count(variable)
        if power:
            i = monomial.index(variable)
            result[monomial[:i] + monomial[i + 1 :]] = c * power
    return result


@lru_cache(maxsize=256)
def basis(operators: frozenset[Frozen]) -> tuple[dict[Monomial, Fraction], ...]:
    """The span of 1, the operators and all their derivatives, in reduced echelon form, the lowest leads first."""
    leads: dict[Monomial, dict[Monomial, Fraction]] = {(): {(): Fraction(1)}}
    waiting = [dict(P) for P in operators]
    while waiting:
        P = waiting.pop()
        waiting += [derivative(P, variable) for variable in {v for monomial in P for v in monomial}]
        rest = _reduced(P, leads)
        if rest:
            lead = max(rest, key=_rank)
            rest = {monomial: c / rest[lead] for monomial, c in rest.items()}
            for other in leads.values():
                if lead in other:
                    _subtract(other, other[lead], rest)
            leads[lead] = rest
    return tuple(leads[lead] for lead in sorted(leads, key=_rank))


def products(basis: tuple[Polynomial, ...]) -> tuple[Term, ...]:
    """Leibniz' rule for the basis, read off at its leading monomials: the terms of e_i e_j with i, j > 0."""
    place = {lead_of(P): i for i, P in enumerate(basis)}
    terms = []
    for k, P in enumerate(basis):
        for monomial, c in P.items():
            powers = Counter(monomial)
            for part in _divisors(powers):
                rest = powers - part
                i, j = (place.get(tuple(sorted(half.elements()))) for half in (part, rest))
                if i and j:  # neither missing nor the one of the value
                    ways = prod(comb(powers[variable], count) for variable, count in part.items())
                    terms.append(Term(i, j, k, _plain(c * ways)))
    return tuple(sorted(terms, key=lambda term: (term.k, term.i, term.j)))


def coordinates(P: Polynomial, basis: tuple[Polynomial, ...]) -> dict[int, Fraction] | None:
    """The operator as a combination of the basis, by place; None if it is none."""
    rest, found = dict(P), {}
    for k, b in enumerate(basis):
        lead = lead_of(b)
        if P.get(lead):
            found[k] = P[lead]
            _subtract(rest, P[lead], b)
    return None if rest else found


def lead_of(P: Polynomial) -> Monomial:
    return max(P, key=_rank)


def _rank(monomial: Monomial) -> tuple:
    return len(monomial), monomial


def _reduced(P: Polynomial, leads: Mapping[Monomial, Polynomial]) -> dict[Monomial, Fraction]:
    """P less what the basis has of it. In its reduced form, one pass is enough."""
    rest = dict(P)
    for monomial in P:
        if monomial in leads:
            _subtract(rest, P[monomial], leads[monomial])
    return rest


def _subtract(P: dict[Monomial, Fraction], c: Fraction, other: Polynomial) -> None:
    """P -= c other, without zeros."""
    for monomial, d in dict(other).items():
        left = P.get(monomial, Fraction(0)) - c * d
        if left:
            P[monomial] = left
        else:
            P.pop(monomial, None)


def _divisors(powers: Counter) -> Iterable[Counter]:
    """All ways to take some of each variable."""
    ways = [Counter()]
    for variable, most in powers.items():
        ways = [way + Counter({variable: count}) for way in ways for count in range(most + 1)]
    return ways


def _plain(c: Fraction) -> int | Fraction:
    return int(c) if c.denominator == 1 else c
