"""The one tolerance table: rounding level for the dtype, wherever the tests run."""

import torch
from torch.testing import assert_close

from resolvent.structure.jet import Jet

# float64 and float32 leave about a hundred and more roundings; float16 and bfloat16, of epsilon 1e-3 and 8e-3, six.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 6e-3, torch.bfloat16: 5e-2}


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal in norm up to the rounding of `actual`, for a result in a lower precision than the expected one."""
    error = (actual.to(expected.dtype) - expected).norm() / expected.norm().clamp(min=1e-30)
    assert error <= TOLERANCE[actual.dtype], error


def assert_equal(actual, expected) -> None:
    """Equal up to rounding, for tensors and (nested) tuples of them."""
    if isinstance(expected, torch.Tensor):
        tolerance = TOLERANCE[expected.dtype]
        assert_close(actual, expected, rtol=tolerance, atol=tolerance)
        return
    if isinstance(expected, Jet):
        actual, expected = (actual.coefficients,), (expected.coefficients,)
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert_equal(a, e)


def assert_same(actual: dict, expected: dict) -> None:
    for name, e in expected.items():
        a = actual[name]
        if e is None or not e.numel():
            assert (None if a is None else a.shape) == (None if e is None else e.shape), name
            continue
        assert a.isfinite().all(), name
        error = (a - e).abs().max() / e.abs().max().clamp(min=1)
        assert error <= TOLERANCE[e.dtype], (name, error)
