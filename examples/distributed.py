"""A machine trained by several processes, each on its part of every batch: the same losses as one process gets.

Run: torchrun --nproc-per-node 2 examples/distributed.py [--shard]
"""

import argparse
import gc

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import resolvent as rv


def train(device: torch.device, shard: bool, steps: int) -> torch.Tensor:
    """The loss of this process's part of the last batch."""
    rank, processes = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same data and the same machine in every process
    x = torch.rand(256, 2, device=device)
    target = torch.sin(4 * x[:, :1]) * x[:, 1:]
    machine = rv.DenseMachine((2, 16, 16, 1), ["identity", "tanh", "tanh", "identity"], device=device)
    if shard:
        fully_shard(machine)  # in place
    model = machine if shard else DistributedDataParallel(machine)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    loss = torch.zeros((), device=device)
    for step in range(steps):
        batch = torch.arange(step * 64, step * 64 + 64, device=device) % 256
        mine = batch.chunk(processes)[rank]
        optimizer.zero_grad()
        output = machine.split(model(x[mine]))[-1]
        loss = (output - target[mine]).square().mean()
        loss.backward()
        optimizer.step()
    return loss.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shard", action="store_true", help="shard the parameters too (FSDP2), instead of DDP")
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    loss = train(device, arguments.shard, arguments.steps)
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        print(f"loss {loss.item() / dist.get_world_size():.6f} after {arguments.steps} steps")
    gc.collect()  # a wrapped model must go before its processes part, or they wait for each other
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
