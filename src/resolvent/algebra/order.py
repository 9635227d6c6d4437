"""The order of the layers of a sum, or the cycle that leaves it without one."""

from collections.abc import Sequence
from typing import NamedTuple

from ..machine import NotAMachine


class Edge(NamedTuple):
    """A layer as an edge of the hypergraph of parts."""

    label: str
    reads: Sequence[str]
    writes: Sequence[str]


def levels(edges: Sequence[Edge]) -> list[list[int]]:
    """Earliest first: an edge's level is one more than that of the latest part it reads. Linear in the graph."""
    readers: dict[str, list[int]] = {}
    writers: dict[str, int] = {}
    for i, edge in enumerate(edges):
        for name in edge.reads:
            readers.setdefault(name, []).append(i)
        for name in edge.writes:
            writers[name] = writers.get(name, 0) + 1
    waiting = [sum(name in writers for name in edge.reads) for edge in edges]
    ready = [i for i, count in enumerate(waiting) if count == 0]
    order: list[list[int]] = []
    while ready:
        order.append(ready)
        following = []
        for name in (name for i in ready for name in edges[i].writes):
            writers[name] -= 1
            for reader in readers.get(name, ()) if writers[name] == 0 else ():
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    following.append(reader)
        ready = sorted(following)
    stuck = [edge for edge, count in zip(edges, waiting, strict=True) if count]
    if stuck:
        raise NotAMachine(f"the layers depend on each other in a cycle: {_cycle(stuck)}")
    return order


def _cycle(stuck: list[Edge]) -> str:
    """A cycle as `f1 → b → f2 → a → f1`, found by walking back from a stuck edge along parts that stuck edges write."""
    writer = {name: i for i, edge in reversed(list(enumerate(stuck))) for name in edge.writes}
    path: dict[int, str] = {}
    current = 0
    while current not in path:
        path[current] = next(name for name in stuck[current].reads if name in writer)
        current = writer[path[current]]
    walked = list(path)
    backwards = walked[walked.index(current) :]
    cycle = backwards[::-1]
    start = cycle.index(min(cycle))
    cycle = cycle[start:] + cycle[:start]
    # path[i] is the part that leads into i.
    words = [word for i in cycle for word in (path[i], stuck[i].label)]
    return " → ".join([*words[1:], words[0], words[1]])
