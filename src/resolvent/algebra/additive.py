"""What layers, sums and their derivatives share: a finite sum of layers between named parts, in an order.

A point of X = X_1 ⊕ X_2 ⊕ … is a dict of tensors; a part that is missing is zero. Only a layer that is to read a part
which has no value at all cannot go on: it would not know the shape.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch

from ..machine import Machine, Projection, plus

Parts = Mapping[str, Any]  # of tensors or jets


class Additive(Machine):
    """A finite sum f of layers that can be ordered so that none depends on a later one."""

    layers: tuple[Any, ...]
    levels: tuple[tuple[Any, ...], ...]
    """The layers, earliest first; those of one level do not depend on each other."""
    labels: dict[Any, str]
    """Each layer's own name or, without one, f1, f2, … by its place in the sum."""
    parts: tuple[str, ...]
    """All names, in the order in which the layers mention them."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The parts no layer writes."""
        written = {name for layer in self.layers for name in layer.writes}
        return tuple(name for name in self.parts if name not in written)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The parts no layer reads."""
        read = {name for layer in self.layers for name in layer.reads}
        return tuple(name for name in self.parts if name not in read)

    def depth_at(self, x: Parts | None = None) -> int:
        return len(self.levels)

    def resolvent(self, x0: Parts) -> dict[str, Any]:
        """R_f = (id + f_d) … (id + f_1), level by level."""
        self._check_parts("x0", x0)
        h = dict(x0)
        for level in self.levels:
            for layer in level:
                self._accumulate(h, layer, h)
        return h

    def endofunction(self, x: Parts) -> dict[str, Any]:
        """f(x): what the layers write, all at the same x."""
        self._check_parts("x", x)
        total: dict[str, Any] = {}
        for layer in self.layers:
            self._accumulate(total, layer, x)
        return total

    def cofiltration(self, x: Parts | None = None) -> list[Projection]:
        """The depth cofiltration X ⊇ V_0 ⊇ … ⊇ V_d = 0: V_i keeps the parts that are final only after level i."""
        final = self.part_levels()
        return [_onto({name for name, level in final.items() if level > i}) for i in range(self.depth + 1)]

    def part_levels(self) -> dict[str, int]:
        """After which level each part is final; 0 for the inputs."""
        written = {name: i for i, level in enumerate(self.levels, 1) for layer in level for name in layer.writes}
        return {name: written.get(name, 0) for name in self.parts}

    def depth_sequence(
        self, x0: Parts, start: Parts | None = None, kind: Literal["sweep", "iterate"] = "iterate"
    ) -> list[dict[str, Any]]:
        """The states h_0 = x0 + φ, …, h_d = R_f(x0) of a lifted depth sequence, all parts filled in.

        `"iterate"` is h_i = x0 + f(h_{i-1}), all layers each; `"sweep"` evaluates one level after the other, each once.
        """
        if kind not in ("sweep", "iterate"):
            raise ValueError(f"kind={kind!r} is unknown: use 'sweep' or 'iterate'")
        zeros = {name: torch.zeros_like(value) for name, value in self.resolvent(x0).items()}
        states = [plus(zeros, plus(dict(x0), start))]
        for level in self.levels:
            after = dict(states[-1]) if kind == "sweep" else zeros | dict(x0)
            for layer in level if kind == "sweep" else self.layers:
                self._accumulate(after, layer, states[-1])
            states.append(after)
        return states

    def _accumulate(self, total: dict[str, Any], layer: Any, x: Parts) -> None:
        for name, value in layer.evaluate(self.labels[layer], x).items():
            before = total.get(name)
            if before is not None and before.shape != value.shape:
                raise ValueError(
                    f"{self.labels[layer]} writes {name} of shape {tuple(value.shape)}, "
                    f"which does not add to {tuple(before.shape)}"
                )
            total[name] = value if before is None else before + value

    def _check_parts(self, argument: str, x: Parts) -> None:
        if not isinstance(x, Mapping):
            raise TypeError(f"{argument} must be a dict of tensors by part, got {type(x).__name__}")
        known = set(self.parts)
        unknown = [name for name in x if name not in known]
        if unknown:
            raise ValueError(f"{argument} has the unknown part {unknown[0]!r}: the machine has {', '.join(self.parts)}")


def _onto(kept: set[str]) -> Projection:
    return lambda x: {name: value for name, value in x.items() if name in kept}
