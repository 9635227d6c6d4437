"""Derivatives of derivatives: a penalty on a classifier's Jacobian, and the gradient of a step by its learning rate.

The penalty comes from the sweep over a jet, or from differentiating a backward pass, which is a machine like any other.

    python examples/gradients.py
"""

import argparse
from time import perf_counter

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor
from torch.func import functional_call, grad

import resolvent as rv


def loss_and_slope(net: rv.Network, x: Tensor, labels: Tensor, way: str) -> tuple[Tensor, Tensor]:
    """Cross entropy, and |J v|² or |J* u|² for a random v or u at each point, both of which are |J|² on average."""
    if way == "jets":  # both of them from one sweep
        u = net(rv.jet(x, "v", names="v", directions=[torch.randn_like(x)]))
        output, slope = u[""], u["v"]
    else:
        x = x.clone().requires_grad_()
        output = net(x)
        (slope,) = torch.autograd.grad(output, x, torch.randn_like(output), create_graph=True)
    return F.cross_entropy(output, labels), slope.square().sum(1).mean()


def classifier(seed: int, epochs: int, strength: float, way: str = "jets") -> tuple[float, float, float, float]:
    """Of digits learnt with a penalty: accuracy on new ones, with noise on them, their mean |J|², and seconds."""
    torch.manual_seed(seed)
    images, labels = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    x, order = images.float() / 16, torch.randperm(len(images))
    train, test = order[:1400], order[1400:]
    net = rv.Network.dense(64, (64, 64), 10, "tanh")
    optimizer, start = torch.optim.Adam(net.parameters(), 1e-3), perf_counter()
    for _ in range(epochs):
        for batch in train[torch.randperm(len(train))].split(100):
            loss, slope = loss_and_slope(net, x[batch], labels[batch], way)
            optimizer.zero_grad()
            (loss + strength * slope).backward()
            optimizer.step()
    seconds = perf_counter() - start
    noisy = x[test] + 0.3 * torch.randn(len(test), 64)
    clean, rough = ((net(z).argmax(1) == labels[test]).float().mean().item() for z in (x[test], noisy))
    return clean, rough, loss_and_slope(net, x[test], labels[test], way)[1].item(), seconds


def learned_rate(steps: int) -> tuple[float, float, float]:
    """A learning rate found by descent on the loss after one step, and that loss with the first rate and with it."""
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 64).unsqueeze(1)
    target = torch.sin(3 * x) + 0.3 * torch.randn(64, 1)
    machine = rv.DenseMachine((1, 16, 1), ["identity", "tanh", "identity"])
    parameters = {name: p.detach() for name, p in machine.named_parameters()}

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return (machine.split(functional_call(machine, parameters, (x,)))[-1] - target).square().mean()

    def after_a_step(rate: torch.Tensor) -> torch.Tensor:
        gradients = grad(loss)(parameters)
        return loss({name: p - rate * gradients[name] for name, p in parameters.items()})

    rate = first = torch.tensor(0.01)
    for _ in range(steps):
        rate = rate - 0.01 * grad(after_a_step)(rate)
    return rate.item(), after_a_step(first).item(), after_a_step(rate).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300, help="of the learning rate's descent")
    arguments = parser.parse_args()
    for strength, way in ((0.0, "jets"), (0.03, "jets"), (0.03, "double backward")):
        seeds = [classifier(seed, arguments.epochs, strength, way) for seed in range(arguments.seeds)]
        clean, rough, slope, seconds = torch.tensor(seeds).mean(0).tolist()
        print(
            f"{f'penalty by {way}' if strength else 'no penalty'}: {clean:.1%} of new digits, {rough:.1%} with noise, "
            f"mean squared slope {slope:.2f} ({seconds:.2f} s)"
        )
    rate, before, after = learned_rate(arguments.steps)
    print(f"learning rate 0.01 -> {rate:.3f}: loss after one step {before:.3f} -> {after:.3f}")


if __name__ == "__main__":
    main()
