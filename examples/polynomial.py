"""A dense machine learns p(x, y) = (2x - 1)^2 + 2y + xy - 3 from a 6 × 6 grid and is tested on a finer one.

Run: python examples/polynomial.py [--steps 1500] [--out runs/polynomial.png]
"""

import argparse
from pathlib import Path

import matplotlib
import torch
from rich.progress import track
from torch import Tensor

import resolvent as rv

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def polynomial(points: Tensor) -> Tensor:
    x, y = points.unbind(-1)
    return (2 * x - 1) ** 2 + 2 * y + x * y - 3


def grid(n: int) -> Tensor:
    """The n × n points of a regular grid on the unit square."""
    return torch.cartesian_prod(torch.linspace(0, 1, n), torch.linspace(0, 1, n))


def train(machine: rv.DenseMachine, points: Tensor, steps: int) -> list[float]:
    target = polynomial(points)
    optimizer = torch.optim.Adam(machine.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for _ in track(range(steps), "training"):
        optimizer.zero_grad()
        loss = (machine(points)[:, -1] - target).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def draw(train_points: Tensor, target: Tensor, prediction: Tensor, losses: list[float], path: Path) -> None:
    n = round(len(target) ** 0.5)
    figure, axes = plt.subplots(1, 4, figsize=(15, 3.4), layout="constrained")
    limits = dict(vmin=target.min().item(), vmax=target.max().item())
    panels = [
        ("polynomial and training points", target, limits),
        ("machine", prediction, limits),
        ("machine - polynomial", prediction - target, dict(cmap="RdBu")),
    ]
    for axis, (title, values, options) in zip(axes, panels, strict=False):
        image = axis.imshow(values.reshape(n, n).T, origin="lower", extent=(0, 1, 0, 1), **options)
        axis.set(title=title, xlabel="x", ylabel="y")
        figure.colorbar(image, ax=axis)
    axes[0].plot(*train_points.T, "k.", markersize=4, clip_on=False)
    axes[3].semilogy(losses)
    axes[3].set(title="mean squared error", xlabel="step")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--out", type=Path, default=Path("runs/polynomial.png"))
    arguments = parser.parse_args()

    torch.manual_seed(0)
    machine = rv.DenseMachine((2, 16, 16, 1), ["identity", "tanh", "tanh", "identity"])
    print(machine)
    points, finer = grid(6), grid(51)
    losses = train(machine, points, arguments.steps)
    with torch.no_grad():
        prediction = machine(finer)[:, -1]
    target = polynomial(finer)
    draw(points, target, prediction, losses, arguments.out)
    print(f"training error  {losses[-1]:.2e}  (mean squared, {len(points)} points)")
    print(f"test error      {(prediction - target).square().mean():.2e}  (mean squared, {len(finer)} points)")
    print(f"the polynomial's own variance is {target.var():.2f}; picture in {arguments.out}")


if __name__ == "__main__":
    main()
