"""Derivatives of derivatives: a penalty on the input gradient, and the gradient of a step by its learning rate.

Both differentiate a backward pass, which is a machine like any other.

Run: python examples/gradients.py [--steps N]
"""

import argparse

import torch
from torch.func import functional_call, grad

import resolvent as rv


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-1, 1, 64).unsqueeze(1)
    return x, torch.sin(3 * x) + 0.3 * torch.randn(64, 1)


def penalized(steps: int, strength: float) -> tuple[float, float]:
    """Loss and mean squared slope of a machine trained with a penalty on its slope."""
    torch.manual_seed(0)
    x, target = data()
    machine = rv.DenseMachine((1, 32, 32, 1), ["identity", "tanh", "tanh", "identity"])
    optimizer = torch.optim.Adam(machine.parameters(), 1e-2)
    loss = slope = torch.zeros(())
    for _ in range(steps):
        x.requires_grad_()
        output = machine.split(machine(x))[-1]
        (gradient,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        loss, slope = (output - target).square().mean(), gradient.square().mean()
        optimizer.zero_grad()
        (loss + strength * slope).backward()
        optimizer.step()
    return loss.item(), slope.item()


def learned_rate(steps: int) -> tuple[float, float, float]:
    """A learning rate found by descent on the loss after one step, and that loss with the first rate and with it."""
    torch.manual_seed(0)
    x, target = data()
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
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    for strength in (0.0, 0.03):
        loss, slope = penalized(steps, strength)
        print(f"penalty {strength}: loss {loss:.3f}, mean squared slope {slope:.2f}")
    rate, before, after = learned_rate(steps)
    print(f"learning rate 0.01 -> {rate:.3f}: loss after one step {before:.3f} -> {after:.3f}")


if __name__ == "__main__":
    main()
