"""A new operator: graph convolutions with all shortcuts, on Zachary's karate club.

The members of a club fell out, and each went with the instructor (node 0) or with the officer (node 33). From these two
alone, a network on the graph of their friendships tells where the other 32 went.

    python examples/graph.py
"""

import argparse
from typing import Any

import networkx as nx
import torch
from torch import Tensor

import resolvent as rv


class GraphConvolution(rv.Operator):
    """y = A z W* on points (batch, nodes, channels), for the adjacency matrix A of a graph."""

    event_ndim = 2  # nodes and channels are no batch
    layout = "(batch, nodes, channels) or the same without batch"
    ndims = range(2, 4)

    def __init__(self, channels: int, A: Tensor):
        self.channels, self.A = channels, A
        self.weight_shape = (channels, channels)

    def apply(self, W: Tensor, z: Tensor) -> Tensor:
        return self.A.to(z) @ z @ W.mT


class GraphMachine(rv.StructuredMachine):
    def __init__(self, sizes: tuple[int, ...], A: Tensor, activation: str | list[str] = "tanh", **options: Any):
        super().__init__(GraphConvolution(sum(sizes), A), sizes, activation, **options)


def karate() -> tuple[Tensor, Tensor]:
    """The adjacency matrix, with loops and normalised by degrees, and which side each member took."""
    graph = nx.karate_club_graph()
    A, (i, j) = torch.eye(len(graph)), torch.tensor([*graph.edges]).T
    A[i, j] = A[j, i] = 1
    scale = A.sum(1).rsqrt()
    return scale[:, None] * A * scale, torch.tensor([int(graph.nodes[i]["club"] == "Officer") for i in graph])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    torch.manual_seed(0)
    A, side = karate()
    net = rv.Network(GraphMachine((34, 8, 8, 2), A, ["identity", "tanh", "tanh", "identity"]))
    optimizer, known = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=5e-3), torch.tensor([0, 33])
    for _ in range(parser.parse_args().steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(torch.eye(34))[known], side[known]).backward()
        optimizer.step()
    right = (net(torch.eye(34)).argmax(1) == side).sum()
    print(f"{right} of 34 members told, from 2 ({type(net.machine).__name__}, executor {net.machine.executor})")
