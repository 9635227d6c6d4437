"""Five differential equations, each solved by a network whose derivatives by the input come from one sweep.

    python examples/pde.py burgers

The residual is read off the network at a jet, as it stands in a book. The ansatz satisfies the initial and boundary
conditions whatever the network, so that the residual is all there is to minimise: by Levenberg's and Marquardt's
method, which wants the gradient of each point's residual by all weights. That is `vmap` of `grad`, on machines as
elsewhere. With --nested, the same steps are taken with the derivatives of nested torch.func, too.
"""

import argparse
import csv
import platform
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib import pyplot as plt
from rich.progress import Progress
from scipy.integrate import solve_ivp
from torch import Tensor, pi
from torch.func import functional_call, grad, jacfwd, jacrev, vmap
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import resolvent as rv
from resolvent.jets.language import operator


class Problem(NamedTuple):
    names: str
    derivatives: str
    residual: Callable[[Any, Tensor], Any]
    """Of the derivatives of u by their names, at a point."""
    ansatz: Callable[[Any, Any], Any]
    """u of the network at a point, which is a jet or a tensor."""
    draw: Callable[[int], Tensor]
    """So many random points of the domain."""
    truth: Callable[[], tuple[Tensor, Tensor]]
    """Points, on a grid where there are two variables, and the solution there."""
    inputs: int = 2
    steps: int = 400


def burgers() -> Problem:
    """u_t + u u_x = 0.01/π u_xx, from -sin πx; exact by Cole and Hopf, as a Gauss–Hermite quadrature."""
    nu = 0.01 / pi

    def residual(u: Any, point: Tensor) -> Any:
        return u["t"] + u[""] * u["x"] - nu * u["xx"]

    def ansatz(net: Any, p: Any) -> Any:
        t, x = p.unbind(-1)
        return -torch.sin(pi * x) + t * (1 - x**2) * net(p)[..., 0]

    def truth() -> tuple[Tensor, Tensor]:
        points = grid((0.01, 1, 100), (-1, 1, 257))
        t, x = points.unsqueeze(-2).unbind(-1)
        nodes, weights = (torch.from_numpy(a) for a in np.polynomial.hermite.hermgauss(128))
        eta = x - 2 * (nu * t).sqrt() * nodes
        f = weights * torch.exp(-torch.cos(pi * eta) / (2 * pi * nu))
        return points, -(torch.sin(pi * eta) * f).sum(-1) / f.sum(-1)

    return Problem("tx", "t, x, xx", residual, ansatz, partial(in_box, (0, -1), (1, 1)), truth)


def allen_cahn() -> Problem:
    """u_t = 0.0001 u_xx - 5 u³ + 5 u, periodic, from x² cos πx; the truth by a spectral method with 1,024 modes.

    The start has a kink where its period ends, and so has u_x of the ansatz, fading as e^-10t.
    """
    nu = 1e-4

    def residual(u: Any, point: Tensor) -> Any:
        return u["t"] - nu * u["xx"] + 5 * u[""] ** 3 - 5 * u[""]

    def ansatz(net: Any, p: Any) -> Any:
        t, x = p.unbind(-1)
        features = torch.stack([2 * t - 1, torch.cos(pi * x), torch.cos(2 * pi * x)], -1)  # even and periodic
        before = torch.exp(-10 * t)
        return before * x**2 * torch.cos(pi * x) + (1 - before) * net(features)[..., 0]

    def truth() -> tuple[Tensor, Tensor]:
        x, k = np.linspace(-1, 1, 1024, endpoint=False), pi * np.arange(513)
        t = np.linspace(0.01, 1, 100)

        def slope(_: float, u: np.ndarray) -> np.ndarray:
            return np.fft.irfft(-nu * k**2 * np.fft.rfft(u), 1024) - 5 * u**3 + 5 * u

        u = solve_ivp(slope, (0, 1), x**2 * np.cos(pi * x), "DOP853", t, rtol=1e-9, atol=1e-10).y.T
        return grid((0.01, 1, 100), (-1, 1 - 2 / 256, 256)), torch.tensor(u[:, ::4].copy())

    return Problem("tx", "t, xx", residual, ansatz, partial(in_box, (0, -1), (1, 1)), truth, inputs=3, steps=600)


def korteweg_de_vries() -> Problem:
    """u_t + 6 u u_x + u_xxx = 0 with two solitons, of which the faster overtakes the slower; exact."""
    end, far, k = 2.5, 15.0, (1.0, 1.5)

    def exact(t: Any, x: Any) -> Any:
        """2 ∂_xx log τ of τ = 1 + e_1 + e_2 + a e_1 e_2."""
        a = ((k[0] - k[1]) / (k[0] + k[1])) ** 2
        e, f = (torch.exp(each * x - each**3 * t) / a**0.5 for each in k)
        tau, first, second = ((j == 0) + k[0] ** j * e + k[1] ** j * f + sum(k) ** j * a * e * f for j in range(3))
        return 2 * (second / tau - (first / tau) ** 2)

    def residual(u: Any, point: Tensor) -> Any:
        return u["t"] + 6 * u[""] * u["x"] + u["xxx"]

    def ansatz(net: Any, p: Any) -> Any:
        t, x = p.unbind(-1)
        correction = net(torch.stack([t / end, 3 * x / far], -1))[..., 0]
        return exact(-end, x) + (t + end) * (1 - (x / far) ** 2) ** 2 * correction

    def truth() -> tuple[Tensor, Tensor]:
        points = grid((-end, end, 101), (-far, far, 257))
        return points, exact(*points.unbind(-1))

    return Problem("tx", "t, x, xxx", residual, ansatz, partial(in_box, (-end, -far), (end, far)), truth)


def plate() -> Problem:
    """Δ²u = q, a plate that is clamped at its edges, where u and its slope are 0; q by a u that was chosen."""
    load = "xxxx + 2 xxyy + yyyy"

    def clamped(p: Any) -> Any:
        x, y = p.unbind(-1)
        return (1 - x**2) ** 2 * (1 - y**2) ** 2

    def exact(p: Any) -> Any:
        x, y = p.unbind(-1)
        return clamped(p) * torch.sin(3 * x + y) * torch.exp(x * y)

    def residual(u: Any, point: Tensor) -> Any:
        return u[load] - rv.biharmonic(exact, point)

    def ansatz(net: Any, p: Any) -> Any:
        return clamped(p) * net(p)[..., 0]

    def truth() -> tuple[Tensor, Tensor]:
        points = grid((-1, 1, 101), (-1, 1, 101))
        return points, exact(points)

    return Problem("xy", load, residual, ansatz, partial(in_box, (-1, -1), (1, 1)), truth, steps=100)


def poisson() -> Problem:
    """-Δu = f in the unit ball of ten dimensions, 0 on its surface; f by a u that was chosen."""
    names = "abcdefghij"
    laplacian = " + ".join(2 * name for name in names)

    def inside(p: Any) -> Any:
        return 1 - (p**2).sum(-1)

    def exact(p: Any) -> Any:
        return inside(p) * (torch.sin(p[..., :-1] + p[..., 1:] ** 2)).sum(-1)

    def residual(u: Any, point: Tensor) -> Any:
        return u[laplacian] - rv.laplacian(exact, point)

    def ansatz(net: Any, p: Any) -> Any:
        return inside(p) * net(p)[..., 0]

    def draw(count: int) -> Tensor:
        direction = torch.nn.functional.normalize(torch.randn(count, 10), dim=1)
        return direction * torch.rand(count, 1) ** 0.1

    def truth() -> tuple[Tensor, Tensor]:
        points = draw(10_000)
        return points, exact(points)

    return Problem(names, laplacian, residual, ansatz, draw, truth, inputs=10, steps=300)


def in_box(low: Sequence[float], high: Sequence[float], count: int) -> Tensor:
    return torch.tensor(low) + (torch.tensor(high) - torch.tensor(low)) * torch.rand(count, len(low))


def grid(*axes: tuple[float, float, int]) -> Tensor:
    lines = (torch.linspace(first, last, count) for first, last, count in axes)
    return torch.stack(torch.meshgrid(*lines, indexing="ij"), -1)


class Nested:
    """What a jet is asked for, by all derivatives of each order that occurs, of nested torch.func."""

    def __init__(self, u: Callable[[Tensor], Tensor], point: Tensor, names: str):
        self.u, self.point, self.names, self.known = [u], point, names, {}

    def __getitem__(self, text: str) -> Any:
        return sum(float(c) * self.of(monomial) for monomial, c in operator(text, self.names).items())

    def of(self, monomial: tuple[int, ...]) -> Tensor:
        order = len(monomial)
        while len(self.u) <= order:  # forward mode once, where it is cheaper
            self.u.append((jacfwd if len(self.u) == 2 else jacrev)(self.u[-1]))
        if order not in self.known:
            self.known[order] = self.u[order](self.point)
        return self.known[order][monomial]


def least_squares(
    residual: Any, net: rv.Network, draw: Callable[[int], Tensor], steps: int, count: int
) -> Iterator[tuple[float, float]]:
    """Levenberg's and Marquardt's steps, at points of which half are anywhere and half where the residual is large.

    Of each, the mean squared residual before it, and how many seconds the gradients took.
    """
    values, gradients = vmap(residual, (None, 0)), vmap(grad(residual), (None, 0), chunk_size=500)
    damping = 1e-2

    def parameters() -> dict[str, Tensor]:
        return {name: p.detach() for name, p in net.named_parameters()}

    def jacobian(points: Tensor) -> Tensor:
        return torch.cat([g.flatten(1) for g in gradients(parameters(), points).values()], 1)

    def drawn() -> Tensor:
        points = draw(10 * count)
        size = values(parameters(), points).abs()
        return points[torch.multinomial(1 + size / size.mean(), count)]

    points = drawn()
    read = jacobian(points[:10]).any(0)  # W is read below its diagonal only
    for step in range(steps):
        points = points if step % 10 else drawn()
        start = perf_counter()
        J = jacobian(points)[:, read]
        seconds = perf_counter() - start
        x, r = parameters_to_vector(net.parameters()).detach(), values(parameters(), points)
        A, b, loss = J.T @ J / count, J.T @ r / count, r.square().mean()
        while damping < 1e12:
            change = torch.zeros_like(x)
            change[read] = torch.linalg.solve(A + damping * torch.eye(len(b)), b)
            vector_to_parameters(x - change, net.parameters())
            if values(parameters(), points).square().mean() < loss:
                damping /= 3
                break
            damping *= 4
        else:
            vector_to_parameters(x, net.parameters())
            return
        yield loss.item(), seconds


def solve(problem: Problem, steps: int, count: int, nested: bool) -> tuple[rv.Network, float, float]:
    """A network that satisfies the equation, how many seconds that took, and how many of them the gradients."""
    torch.manual_seed(0)
    net = rv.Network.dense(problem.inputs, (20, 20, 20), 1, "tanh")

    def residual(parameters: dict[str, Tensor], point: Tensor) -> Tensor:
        u = partial(problem.ansatz, partial(functional_call, net, parameters))
        if nested:
            return problem.residual(Nested(u, point, problem.names), point)
        return problem.residual(u(rv.jet(point, problem.derivatives, names=problem.names)), point)

    start, of_gradients = perf_counter(), 0.0
    with Progress() as progress:
        task = progress.add_task("", total=steps)
        for loss, seconds in least_squares(residual, net, problem.draw, steps, count):
            of_gradients += seconds
            progress.update(task, advance=1, description=f"mean squared residual {loss:.1e}")
    return net, perf_counter() - start, of_gradients


def draw_picture(path: Path, title: str, names: str, points: Tensor, exact: Tensor, found: Tensor) -> None:
    """Both solutions and their difference: over the plane, or of points that are no grid, one against the other."""
    if points.ndim == 3:
        figure, axes = plt.subplots(1, 3, figsize=(12, 3.2), layout="constrained", sharey=True)
        far = found.sub(exact).abs().max().item()
        bound = exact.abs().max().item()
        panels = dict(exact=(exact, bound), network=(found, bound), difference=(found - exact, far))
        for ax, (name, (values, limit)) in zip(axes, panels.items(), strict=True):
            image = ax.pcolormesh(*points.unbind(-1), values, cmap="RdBu", vmin=-limit, vmax=limit)
            ax.set(title=name, xlabel=names[0])
            figure.colorbar(image, ax=ax)
        axes[0].set_ylabel(names[1])
    else:
        figure, ax = plt.subplots(figsize=(4, 3.6), layout="constrained")
        ax.plot(exact, found, ".", markersize=1)
        ax.set(xlabel="exact", ylabel="network")
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


PROBLEMS = {make.__name__: make for make in (burgers, allen_cahn, korteweg_de_vries, plate, poisson)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PROBLEMS)
    parser.add_argument("--steps", type=int, help="of the method; unless you say, as many as the problem wants")
    parser.add_argument("--points", type=int, default=2000, help="at which the residual is made small in each step")
    parser.add_argument("--nested", action="store_true", help="train with nested torch.func besides")
    parser.add_argument("--out", type=Path, default=Path("runs/pde"), help="the folder for NAME.png and NAME.csv")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    make = PROBLEMS[arguments.name]
    problem, title = make(), (make.__doc__ or "").split(",")[0].split(";")[0]
    steps = arguments.steps or problem.steps
    points, exact = problem.truth()
    rows = []
    for way in ("jets", "nested torch.func") if arguments.nested else ("jets",):
        net, seconds, of_gradients = solve(problem, steps, arguments.points, way != "jets")
        with torch.no_grad():
            found = problem.ansatz(net, points)
        error = ((found - exact).norm() / exact.norm()).item()
        print(f"{arguments.name} by {way}: relative L2 error {error:.1e} after {steps} steps in {seconds:.0f} s,")
        print(f"of which the gradients took {of_gradients:.0f} s")
        rows.append((arguments.name, way, steps, f"{error:.2e}", f"{seconds:.4g}", f"{of_gradients:.4g}"))
        if way == "jets":
            draw_picture(arguments.out / f"{arguments.name}.png", title, problem.names, points, exact, found)
    if arguments.nested:
        print(f"nested torch.func takes {float(rows[1][-1]) / float(rows[0][-1]):.1f} times as long for them")
    with (arguments.out / f"{arguments.name}.csv").open("w") as file:
        versions = f"torch {torch.__version__}", f"{torch.get_num_threads()}-thread {platform.machine()}"
        head = (
            "problem",
            "derivatives",
            "steps",
            "relative L2 error",
            "seconds",
            "seconds of gradients",
            "torch",
            "device",
        )
        csv.writer(file).writerows([head, *(row + versions for row in rows)])


if __name__ == "__main__":
    main()
