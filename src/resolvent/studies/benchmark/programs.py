"""The competitors: programs for the same network, functions of (y0, weights) to z that autograd differentiates."""

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import resolvent as rv


def loop(machine: Any) -> tuple[Callable[[Tensor, list[Tensor]], Tensor], list[Tensor]]:
    """What a user would write: a list of blocks and torch.cat; with it its weights, one for each row of blocks."""
    program = {rv.DenseMachine: _dense, rv.ConvMachine: _conv, rv.RecurrentMachine: _recurrent}[type(machine)]
    return program(machine)


def _dense(machine: rv.DenseMachine):
    blocks = machine.partition.blocks
    weights = [machine.weight.detach()[to, : to.start].clone() for to in blocks[1:]]

    def run(y0: Tensor, weights: list[Tensor]) -> Tensor:
        zs = [torch.tanh(y0[:, blocks[0]])]
        for to, weight in zip(blocks[1:], weights, strict=True):
            zs.append(torch.tanh(y0[:, to] + torch.cat(zs, 1) @ weight.mT))
        return torch.cat(zs, 1)

    return run, weights


def _conv(machine: rv.ConvMachine):
    blocks = machine.partition.blocks
    weights = [machine.weight.detach()[to, : to.start].clone() for to in blocks[1:]]
    convolve = (F.conv1d, F.conv2d)[len(machine.weight.shape) - 3]

    def run(y0: Tensor, weights: list[Tensor]) -> Tensor:
        zs = [torch.tanh(y0[:, blocks[0]])]
        for to, weight in zip(blocks[1:], weights, strict=True):
            zs.append(torch.tanh(y0[:, to] + convolve(torch.cat(zs, 1), weight, padding="same")))
        return torch.cat(zs, 1)

    return run, weights


def _recurrent(machine: rv.RecurrentMachine):
    """Step by step, block by block: what feeds a block at short lags is the earlier blocks, at long lags all."""
    blocks, lags, time_block = machine.partition.blocks, machine.operator.lags, machine.connections.time_block
    W = machine.weight.detach()
    short = [torch.cat([W[lag, to, : to.start] for lag in range(min(time_block, lags + 1))], 1) for to in blocks]
    long = torch.cat([W[lag] for lag in range(time_block, lags + 1)], 1)

    def run(y0: Tensor, weights: list[Tensor]) -> Tensor:
        *short, long = weights
        n = y0.shape[-1]
        steps: list[Tensor] = []
        for t in range(y0.shape[1]):
            y = y0[:, t]
            past = [steps[t - lag] for lag in range(time_block, lags + 1) if lag <= t]
            if past:
                y = y + torch.cat(past, 1) @ long[:, : n * len(past)].mT
            zs: list[Tensor] = []
            for to, weight in zip(blocks, short, strict=True):
                block = y[:, to]
                if to.start:
                    recent = [torch.cat(zs, 1)]
                    recent += [steps[t - lag][:, : to.start] for lag in range(1, min(time_block, lags + 1)) if lag <= t]
                    block = block + torch.cat(recent, 1) @ weight[:, : to.start * len(recent)].mT
                zs.append(torch.tanh(block))
            steps.append(torch.cat(zs, 1))
        return torch.stack(steps, 1)

    return run, [*short, long]


def layer(machine: Any, y0: Tensor) -> tuple[Callable[[Tensor, list[Tensor]], Tensor], Tensor, list[Tensor]]:
    """The library's own layer of the same width, as `through_autograd` takes it: a landmark, not the same function."""
    n, options = machine.partition.total, cast(Any, dict(device=y0.device, dtype=y0.dtype))
    if isinstance(machine, rv.RecurrentMachine):
        rnn = nn.RNN(n, n, batch_first=True, **options)
        return (lambda x, _: rnn(x)[0]), y0, list(rnn.parameters())
    if isinstance(machine, rv.ConvMachine):
        kernel = cast(Any, tuple(machine.weight.shape[2:]))
        conv = (nn.Conv1d, nn.Conv2d)[len(kernel) - 1](n, n, kernel, padding="same", bias=False, **options)
        return (lambda x, _: conv(x)), y0, [conv.weight]
    linear = nn.Linear(n, n, bias=False, **options)
    return (lambda x, _: linear(x)), y0, [linear.weight]


def limit(machine: Any, y0: Tensor) -> Callable[[], Tensor]:
    """One product or convolution with exactly the arithmetic of the read part of W."""
    read = int((machine.operator.mask(machine.connections.expand(machine.partition))).sum())
    n = machine.partition.total
    if isinstance(machine, rv.ConvMachine):
        taps = machine.weight[0, 0].numel()
        half = max(1, round(read / taps / n))
        weight, x = machine.weight.detach()[:, :half].contiguous(), y0.detach()[:, :half].contiguous()
        convolve = (F.conv1d, F.conv2d)[len(machine.weight.shape) - 3]
        return lambda: convolve(x, weight, padding="same")
    x = y0.detach().reshape(-1, n)
    inner = max(1, round(read / n))
    weight = torch.randn(inner, n, device=x.device, dtype=x.dtype)
    x = torch.randn(len(x), inner, device=x.device, dtype=x.dtype)
    return lambda: x @ weight
