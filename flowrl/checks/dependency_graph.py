"""Dependencies between names: topological order, reachability, components, cycles.

Every process of a run checks its graph. Importing a graph library took longer than the check.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Arrow = tuple[str, str]  # from a producer to its consumer


class DependencyGraph:
    """Names, and arrows from producers to consumers. An arrow that is given twice counts once."""

    def __init__(self, names: Iterable[str], arrows: Iterable[Arrow]) -> None:
        self.arrows = tuple(dict.fromkeys(arrows))
        names = [*names, *(name for arrow in self.arrows for name in arrow)]
        self._consumers: dict[str, list[str]] = {name: [] for name in names}
        self._producers: dict[str, list[str]] = {name: [] for name in names}
        for producer, consumer in self.arrows:
            self._consumers[producer].append(consumer)
            self._producers[consumer].append(producer)

    def downstream(self, names: Iterable[str]) -> set[str]:
        """Return these names and all that depend on them."""
        return _reachable(names, self._consumers)

    def upstream(self, names: Iterable[str]) -> set[str]:
        """Return these names and all that they depend on."""
        return _reachable(names, self._producers)

    def components(self) -> list[set[str]]:
        """Return the groups of names that arrows connect, whatever their direction."""
        neighbours = {n: self._consumers[n] + self._producers[n] for n in self._consumers}
        groups: list[set[str]] = []
        left = dict.fromkeys(neighbours)
        while left:
            groups.append(_reachable([next(iter(left))], neighbours))
            for name in groups[-1]:
                del left[name]
        return groups

    def topological_order(self, rank: Callable[[str], Any]) -> list[str]:
        """Return the names, producers first, ties by rank. Names on a cycle or downstream of one are left out."""
        waits_for = {name: len(producers) for name, producers in self._producers.items()}
        ready = [(rank(name), name) for name, count in waits_for.items() if not count]
        heapq.heapify(ready)
        order = []
        while ready:
            _, name = heapq.heappop(ready)
            order.append(name)
            for consumer in self._consumers[name]:
                waits_for[consumer] -= 1
                if not waits_for[consumer]:
                    heapq.heappush(ready, (rank(consumer), consumer))
        return order

    def find_cycle(self) -> list[str]:
        """Return the first cycle that a depth-first search in the order of the names finds; empty if there is none."""
        visited: set[str] = set()
        for start in self._consumers:
            path: dict[str, None] = {}
            ahead = [iter([start])]
            while ahead:
                name = next(ahead[-1], None)
                if name is None:
                    ahead.pop()
                    if path:
                        path.popitem()
                elif name in path:
                    names = list(path)
                    return names[names.index(name) :]
                elif name not in visited:
                    visited.add(name)
                    path[name] = None
                    ahead.append(iter(self._consumers[name]))
        return []


def _reachable(starts: Iterable[str], neighbours: Mapping[str, Iterable[str]]) -> set[str]:
    found = set(starts)
    left = list(found)
    while left:
        new = set(neighbours[left.pop()]) - found
        found |= new
        left.extend(new)
    return found
