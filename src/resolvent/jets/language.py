"""The little language of derivatives: sums of monomials in the names of the variables, with numbers before them."""

import re
from fractions import Fraction

from .algebra import Monomial

MONOMIAL = re.compile(
    r"\s*(?P<sign>[+-])?\s*(?:(?P<number>\d+(?:\.\d+|/0*[1-9]\d*)?)\s*(?:\*\s*(?=[^\W\d_]))?)?(?P<letters>[^\W\d_]*)\s*"
)


class Slip(ValueError):
    """A text that says no derivative, with a mark below where it goes wrong."""

    def __init__(self, text: str, place: int, what: str):
        super().__init__(f"{what}:\n  {text}\n  {' ' * place}^")


def operator(text: str, names: str, start: int = 0, whole: str | None = None) -> dict[Monomial, Fraction]:
    """The polynomial in ∂ of a text like "xx + 2 xy"; of an empty one, the value.

    >>> operator("xx + 1/2 xy", names="xy")
    {(0, 0): Fraction(1, 1), (0, 1): Fraction(1, 2)}
    """
    whole = text if whole is None else whole
    total: dict[Monomial, Fraction] = {}
    if not text.strip():
        return {(): Fraction(1)}
    at = 0
    while at < len(text):
        match = MONOMIAL.match(text, at)
        assert match is not None  # all of it is optional
        if at and not match["sign"]:
            raise Slip(whole, start + at, "a + or - is needed here")
        if not match["letters"] and not match["number"]:
            place = start + min(match.end(), len(text))
            raise Slip(whole, place, f"a derivative in the names {', '.join(names)} is needed here")
        for i, letter in enumerate(match["letters"]):
            if letter not in names:
                place = start + match.start("letters") + i
                raise Slip(whole, place, f"{letter!r} is none of the names {', '.join(names)}")
        monomial = tuple(sorted(names.index(letter) for letter in match["letters"]))
        number = Fraction(match["number"] or 1) * (-1 if match["sign"] == "-" else 1)
        total[monomial] = total.get(monomial, Fraction(0)) + number
        at = match.end()
    total = {monomial: c for monomial, c in total.items() if c}
    if not total:
        raise Slip(whole, start, "this derivative is zero")
    return total


def operators(text: str, names: str) -> list[dict[Monomial, Fraction]]:
    """Of a text with commas between them.

    >>> operators("t, xx", names="tx")
    [{(0,): Fraction(1, 1)}, {(1, 1): Fraction(1, 1)}]
    """
    if not isinstance(text, str):
        raise TypeError(f"derivatives must be a text like 'x, xx', got {text!r}")
    parts, start = [], 0
    for part in text.split(","):
        if not part.strip() and "," in text:
            raise Slip(text, start, "a derivative is missing here")
        parts.append(operator(part, names, start, text))
        start += len(part) + 1
    return parts
