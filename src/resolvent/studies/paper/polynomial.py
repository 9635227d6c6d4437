"""A dense machine learns p(x, y) = (2x - 1)^2 + 2y + xy - 3 from a 6 × 6 grid and is tested on a finer one."""

import torch
from matplotlib.figure import Figure
from rich.progress import track
from torch import Tensor

from ...machines.dense import DenseMachine


def polynomial(points: Tensor) -> Tensor:
    x, y = points.unbind(-1)
    return (2 * x - 1) ** 2 + 2 * y + x * y - 3


def grid(n: int) -> Tensor:
    """The n × n points of a regular grid on the unit square."""
    return torch.cartesian_prod(torch.linspace(0, 1, n), torch.linspace(0, 1, n))


def train(machine: DenseMachine, points: Tensor, steps: int) -> list[float]:
    target = polynomial(points)
    optimizer = torch.optim.Adam(machine.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for _ in track(range(steps), "polynomial"):
        optimizer.zero_grad()
        loss = (machine(points)[:, -1] - target).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def draw(train_points: Tensor, target: Tensor, prediction: Tensor, losses: list[float]) -> Figure:
    n = round(len(target) ** 0.5)
    figure = Figure(figsize=(15, 3.4), layout="constrained")
    axes = figure.subplots(1, 4)
    limits = dict(vmin=target.min().item(), vmax=target.max().item())
    panels = [
        ("polynomial and training points", target, limits),
        ("machine", prediction, limits),
        ("machine - polynomial", prediction - target, dict(cmap="RdBu")),
    ]
    for axis, (title, values, options) in zip(axes, panels, strict=False):
        image = axis.imshow(values.reshape(n, n).T.numpy(), origin="lower", extent=(0, 1, 0, 1), **options)
        axis.set(title=title, xlabel="x", ylabel="y")
        figure.colorbar(image, ax=axis)
    axes[0].plot(*train_points.T.numpy(), "k.", markersize=4, clip_on=False)
    axes[3].semilogy(losses)
    axes[3].set(title="mean squared error", xlabel="step")
    return figure


def learn(steps: int = 1500) -> tuple[Figure, str]:
    """The picture, and what came out."""
    torch.manual_seed(0)
    machine = DenseMachine((2, 16, 16, 1), ["identity", "tanh", "tanh", "identity"])
    points, finer = grid(6), grid(51)
    losses = train(machine, points, steps)
    with torch.no_grad():
        prediction = machine(finer)[:, -1]
    target = polynomial(finer)
    return draw(points, target, prediction, losses), (
        f"Mean squared error {losses[-1]:.2e} on the {len(points)} training points and "
        f"{(prediction - target).square().mean():.2e} on {len(finer)} others; "
        f"the polynomial's variance is {target.var():.2f}"
    )
