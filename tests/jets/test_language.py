"""The little language of derivatives, and where a slip is shown."""

from fractions import Fraction

import pytest

from resolvent.jets.language import Slip, operator, operators


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {(): 1}),
        ("1", {(): 1}),
        ("xx", {(1, 1): 1}),
        (" xt ", {(0, 1): 1}),
        ("xx+2xt - 0.5 t", {(1, 1): 1, (0, 1): 2, (0,): Fraction(-1, 2)}),
        ("-1/3*x", {(1,): Fraction(-1, 3)}),
        ("x + x", {(1,): 2}),
        ("3 + x", {(): 3, (1,): 1}),
    ],
)
def test_a_text_is_a_polynomial(text, expected):
    assert operator(text, "tx") == expected


def test_commas_are_between_derivatives():
    assert operators("t, xx", "tx") == [{(0,): 1}, {(1, 1): 1}]


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("t, yx", 3, "'y' is none of the names t, x"),
        ("xx xx", 3, "a \\+ or - is needed here"),
        ("t, xx +", 7, "a derivative in the names t, x is needed here"),
        ("t,, x", 2, "a derivative is missing here"),
        ("t,", 2, "a derivative is missing here"),
        ("x ^ 2", 2, "a \\+ or - is needed here"),
        ("2*", 1, "a \\+ or - is needed here"),
        ("*x", 0, "a derivative in the names t, x is needed here"),
        ("t, x - x", 2, "this derivative is zero"),
        ("1/0 x", 1, "a \\+ or - is needed here"),
    ],
)
def test_a_slip_is_shown_where_it_is(text, place, message):
    with pytest.raises(Slip, match=message) as slip:
        operators(text, "tx")
    *_, shown, mark = str(slip.value).splitlines()
    assert shown == f"  {text}"
    assert mark == " " * (place + 2) + "^"


@pytest.mark.unchecked
def test_what_is_no_text_is_refused():
    with pytest.raises(TypeError, match=r"derivatives must be a text like 'x, xx', got 2\.5"):
        operators(2.5, "x")  # pyright: ignore
