"""The networks of `jet_programs.py` in JAX, differentiated by the input as its users would write it, for `jax.jit`."""

# pyright: reportMissingImports=false

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.jet import jet
from torch import Tensor

import resolvent as rv

from .jet_cases import BIHARMONIC, LAPLACIAN, JetCase

folx: Any
try:
    import folx
except ImportError:
    folx = None

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_default_matmul_precision", "highest")  # machines compute in IEEE float32, so this must too


def network(net: rv.Network) -> Callable[[Any, Any], Any]:
    """(weights, one point) to the output, of which a network of points has one number."""
    if isinstance(net.machine, rv.RecurrentMachine):
        return _recurrent

    convolutional = isinstance(net.machine, rv.ConvMachine)

    def layer(zs: list[Any], weight: Any, bias: Any) -> Any:
        z = jnp.concatenate(zs)
        if convolutional:
            return jax.lax.conv_general_dilated(z[None], weight, (1,), "SAME")[0] + bias[:, None]
        return weight @ z + bias

    def run(weights: Any, x: Any) -> Any:
        *hidden, last = zip(weights[::2], weights[1::2], strict=True)
        zs = [x]
        for weight, bias in hidden:
            zs.append(jnp.tanh(layer(zs, weight, bias)))
        y = layer(zs, *last)
        return y if convolutional else y[0]

    return run


def _recurrent(weights: Any, x: Any) -> Any:
    *hidden, (out_weight, out_bias) = zip(weights[::2], weights[1::2], strict=True)
    before = [jnp.zeros_like(bias) for _, bias in hidden]
    outputs = []
    for x_t in x:
        zs = [x_t]
        for i, (weight, bias) in enumerate(hidden):
            zs.append(jnp.tanh(weight @ jnp.concatenate([*zs, before[i]]) + bias))
        before = zs[1:]
        outputs.append(out_weight @ jnp.concatenate(zs) + out_bias)
    return jnp.stack(outputs)


def nested(case: JetCase, u: Callable, x: Any, direction: Any) -> Any:
    """jax.hessian where it is enough, jax.grad of jax.grad elsewhere, and jax.jvp of jax.jvp along a direction."""
    if case.operator.along:

        def derivative(x: Any) -> Any:
            return jax.jvp(u, (x,), (direction,))[1]

        return case.operator.residual(*jax.jvp(derivative, (x,), (direction,)))
    if case.operator in (LAPLACIAN, BIHARMONIC):

        def laplacian(u: Callable) -> Callable:
            return lambda x: jnp.trace(jax.hessian(u)(x))

        return laplacian(u)(x) if case.operator == LAPLACIAN else laplacian(laplacian(u))(x)

    def separately(*x: Any) -> Any:
        return u(jnp.stack(x))

    def of(letters: str) -> Any:
        v: Callable = separately
        for letter in letters.replace("1", ""):
            v = jax.grad(v, case.operator.names.index(letter))
        return v(*x)

    return case.operator.residual(*map(of, case.operator.derivatives.split(", ")))


def taylor(case: JetCase, u: Callable, x: Any, direction: Any) -> Any:
    """jax.experimental.jet along as many directions as the operator needs, side by side."""
    order = case.operator.order

    def along(v: Any) -> tuple[Any, list[Any]]:
        """The value and all derivatives up to the order."""
        return jet(u, (x,), ([v, *[jnp.zeros_like(v)] * (order - 1)],))

    if case.operator.along:
        return case.operator.residual(*along(direction)[1])
    units = jnp.eye(len(x), dtype=x.dtype)
    if case.operator == LAPLACIAN:
        return jax.vmap(lambda v: along(v)[1][1])(units).sum()
    if case.operator == BIHARMONIC:  # by polarisation: xxyy from the fourth derivatives along x ± y
        diagonals = jnp.array([[1, 1], [1, -1]], x.dtype)
        fourth = jax.vmap(lambda v: along(v)[1][3])(jnp.concatenate([units, diagonals]))
        return (4 * (fourth[0] + fourth[1]) + fourth[2] + fourth[3]) / 6
    t, known = jax.jvp(u, (x,), (units[0],))[1], along(units[1])
    return case.operator.residual(known[0], t, known[1][0], known[1][-1])


def forward_laplacian(case: JetCase, u: Callable, x: Any, direction: Any) -> Any:
    return folx.forward_laplacian(u)(x).laplacian


class Step:
    """A compiled step, which is called for (value, gradients)."""

    def __init__(self, loss: Callable[[Any], Any], weights: Any):
        self.loss, self.weights = loss, weights

    @cached_property
    def compiled(self) -> Any:
        return jax.jit(jax.grad(self.loss, has_aux=True)).lower(self.weights).compile()

    def __call__(self) -> tuple[Any, Any]:
        gradients, value = jax.block_until_ready(self.compiled(self.weights))
        return value, gradients

    def mebibytes(self) -> float:
        """What XLA says that a call allocates; it keeps memory between calls, so the resident set does not grow."""
        memory = self.compiled.memory_analysis()
        return round((memory.temp_size_in_bytes + memory.output_size_in_bytes) / 2**20, 1)


def programs(case: JetCase, net: rv.Network, *tensors: Tensor) -> Iterator[tuple[str, Step]]:
    """Each program's name and its step, of the network, its weights, points and directions."""
    *weights, x, direction = (jnp.asarray(t.detach().numpy()) for t in tensors)
    u = network(net)

    def step(differentiate: Callable) -> Step:
        def loss(weights: Any) -> Any:
            value = jax.vmap(lambda *at: differentiate(case, lambda x: u(weights, x), *at))(x, direction)
            return (value**2).mean(), value

        return Step(loss, weights)

    first = "hessian" if case.operator == LAPLACIAN else "nested"
    yield f"jax.jit, {first}", step(nested)
    yield "jax.jit, jet", step(taylor)
    if case.operator == LAPLACIAN and folx is not None:
        yield "folx", step(forward_laplacian)
