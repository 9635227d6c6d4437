"""A convolutional and a recurrent machine learn to predict a sine a quarter period ahead from noisy samples of it."""

import math

import torch
from matplotlib.figure import Figure
from rich.progress import track
from torch import Tensor, nn

from ...machines.convolutional import ConvMachine
from ...machines.recurrent import RecurrentMachine
from ...training import Model

PERIOD, NOISE, TIME_STEPS = 25, 0.3, 100


def series(batch: int) -> tuple[Tensor, Tensor]:
    """Noisy sines of random phase, and the clean sines shifted by a quarter period: both (batch, time, 1)."""
    phase = 2 * math.pi * torch.rand(batch, 1, 1)
    t = torch.arange(TIME_STEPS)[:, None] * (2 * math.pi / PERIOD) + phase
    return t.sin() + NOISE * torch.randn(t.shape), (t + math.pi / 2).sin()


def train(name: str, model: nn.Module, steps: int) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for _ in track(range(steps), name):
        x, target = series(32)
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def learn(steps: int = 400) -> tuple[Figure, str]:
    """The picture, and what came out."""
    torch.manual_seed(0)
    sizes, activation = (1, 8, 8, 1), ["identity", "tanh", "tanh", "identity"]
    models = {
        "convolutional": Model(ConvMachine(sizes, activation, kernel_size=9, padding="causal")),
        "recurrent": Model(RecurrentMachine(sizes, activation, lags=2)),
    }
    x, target = series(200)
    figure = Figure(figsize=(9, 6), layout="constrained")
    above, below = figure.subplots(2, 1)
    above.plot(x[0, :, 0], "k.", markersize=3, label="input")
    above.plot(target[0, :, 0], "k--", linewidth=1, label="target")
    errors = []
    for name, model in models.items():
        losses = train(name, model, steps)
        with torch.no_grad():
            prediction = model(x)
        errors.append(f"{name} {(prediction - target)[:, PERIOD:].square().mean():.4f}")
        above.plot(prediction[0, :, 0], label=name)
        below.semilogy(losses, label=name)
    above.set(title="a test series", xlabel="time step", ylim=(-2, 2.4))
    below.set(title="mean squared error in training", xlabel="optimiser step")
    above.legend(loc="upper right", ncols=4)
    below.legend()
    variance = f"the target's variance is {target.var():.2f}, the noise's {NOISE**2:.2f}"
    return figure, f"Mean squared test error after one period: {', '.join(errors)}; {variance}"
