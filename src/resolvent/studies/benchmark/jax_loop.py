"""The loop of `_programs.py` in JAX, for `jax.jit`, line by line as its users would write it: (y0, weights) to z."""

# pyright: reportMissingImports=false

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import resolvent as rv

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_default_matmul_precision", "highest")  # machines compute in IEEE float32, so this must too


def loop(machine: Any) -> Callable[[jax.Array, list[jax.Array]], jax.Array]:
    return {rv.DenseMachine: _dense, rv.ConvMachine: _conv, rv.RecurrentMachine: _recurrent}[type(machine)](machine)


def _dense(machine: rv.DenseMachine):
    blocks = machine.partition.blocks

    def run(y0, weights):
        zs = [jnp.tanh(y0[:, blocks[0]])]
        for to, weight in zip(blocks[1:], weights, strict=True):
            zs.append(jnp.tanh(y0[:, to] + jnp.concatenate(zs, 1) @ weight.T))
        return jnp.concatenate(zs, 1)

    return run


def _conv(machine: rv.ConvMachine):
    blocks, axes = machine.partition.blocks, machine.weight.ndim - 2

    def run(y0, weights):
        zs = [jnp.tanh(y0[:, blocks[0]])]
        for to, weight in zip(blocks[1:], weights, strict=True):
            z = jnp.concatenate(zs, 1)
            zs.append(jnp.tanh(y0[:, to] + jax.lax.conv_general_dilated(z, weight, (1,) * axes, "SAME")))
        return jnp.concatenate(zs, 1)

    return run


def _recurrent(machine: rv.RecurrentMachine):
    blocks, lags, time_block = machine.partition.blocks, machine.operator.lags, machine.connections.time_block

    def run(y0, weights):
        *short, long = weights
        n = y0.shape[-1]
        steps = []
        for t in range(y0.shape[1]):
            y = y0[:, t]
            past = [steps[t - lag] for lag in range(time_block, lags + 1) if lag <= t]
            if past:
                y = y + jnp.concatenate(past, 1) @ long[:, : n * len(past)].T
            zs = []
            for to, weight in zip(blocks, short, strict=True):
                block = y[:, to]
                if to.start:
                    recent = [jnp.concatenate(zs, 1)]
                    recent += [steps[t - lag][:, : to.start] for lag in range(1, min(time_block, lags + 1)) if lag <= t]
                    block = block + jnp.concatenate(recent, 1) @ weight[:, : to.start * len(recent)].T
                zs.append(jnp.tanh(block))
            steps.append(jnp.concatenate(zs, 1))
        return jnp.stack(steps, 1)

    return run
