"""All laws of the family over numbers that are drawn, too: the long run of what `tests/kinds.py` has a sample of."""

import pytest
import test_machine
from cases import Case, cases
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from kinds import ALL_KINDS, NUMBERS, over, structured

LAWS = [law for name, law in vars(test_machine).items() if name.startswith("test_")]
GENTLE = ("identity", "tanh", "sigmoid", "gelu", "gelu_tanh", "silu", "softplus", "sin")
"""Smooth, so that a difference of points differs by rounding alone."""


@pytest.mark.long
@pytest.mark.parametrize("law", LAWS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(case=cases(activations=GENTLE, widths=(1, 2)), which=st.sampled_from([*NUMBERS, "reals"]))
def test_each_law_holds_over_drawn_numbers(law, case: Case, which):
    assume(case.points(1)[0].numel())
    kind = structured(case)
    ALL_KINDS["drawn"] = lambda: kind if which == "reals" else over(kind, NUMBERS[which])
    law("drawn")
