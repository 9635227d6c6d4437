"""Derivatives along directions by nested autograd, to hold jets to."""

import torch
from torch import Tensor

import resolvent as rv


def nested(f, points: Tensor, *directions: Tensor) -> Tensor:
    """The derivative along one direction after another, by reverse mode in reverse mode."""
    for d in directions:

        def derivative(x: Tensor, f=f, d=d) -> Tensor:
            x = x if x.requires_grad else x.clone().requires_grad_()
            y = f(x)
            if not y.requires_grad:
                return torch.zeros_like(y)
            seed = torch.zeros_like(y).requires_grad_()
            pulled = torch.autograd.grad(y, x, seed, create_graph=True, materialize_grads=True)[0]
            pairing = (pulled * d).sum() + 0 * seed.sum()
            return torch.autograd.grad(pairing, seed, create_graph=True, materialize_grads=True)[0]

        f = derivative
    return f(points)


def along(points: Tensor, letters: str, names: str) -> list[Tensor]:
    """The directions of some letters, each the unit vector of a channel."""
    eye = torch.eye(len(names), dtype=points.dtype)
    return [eye[names.index(letter)].expand(points.shape) for letter in letters]


def assert_derivatives(f, points: Tensor, text: str, names: str, tolerance: float = 1e-11) -> None:
    jets = f(rv.jet(points, text, names=names))
    for letters in ["", *(part.strip() for part in text.split(","))]:
        expected = nested(f, points, *along(points, letters, names)).detach()
        scale = expected.abs().max().clamp(min=1)
        assert (jets[letters] - expected).abs().max() <= tolerance * scale, letters
