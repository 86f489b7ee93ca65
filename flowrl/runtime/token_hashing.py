"""Hashes of all that flows: of each token where it is given, of each version where it is seen.

Both happen in a firing, and a firing is a position in the program; so what is noted is the same in every placement.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from flowrl.core.batch import Batch
from flowrl.core.state import Clock, State
from flowrl.graph.model import Edge, Graph, PortRef
from flowrl.graph.replica_pairs import ReplicaPair, replica_pairs_of
from flowrl.runtime.instance import Instance, Position
from flowrl.runtime.streams import Push, Take, Token

DIGEST_BYTES = 8

Way = tuple[PortRef, ReplicaPair]


class TokenHash(NamedTuple):
    """A token that was given, or a version that was seen."""

    position: Position  # of the firing that gave or saw it
    pair: int  # number of the replica pair, in the order of the graph
    version: int  # of a state; -1: a token of a stream
    digest: bytes


Note = Callable[[TokenHash], None]


def ways_of(graph: Graph) -> dict[Way, int]:
    """All ways by which tokens and versions go, numbered."""
    edges = [edge for edge in graph.edges if edge.kind != "link"]
    ways = [(edge.to, lane) for edge in edges for lane in replica_pairs_of(graph, edge)]
    return {way: number for number, way in enumerate(ways)}


class TokenHasher:
    """Stands at the ports of instances, and notes what passes."""

    def __init__(self, graph: Graph, note: Note) -> None:
        self._ways, self._note = ways_of(graph), note
        self._seen: dict[int, int] = {}  # by way: the version that was noted last

    def giving(self, instance: Instance, edge: Edge, lanes: list[ReplicaPair], push: Push) -> Push:
        """The same push; the lanes take turns, as the queues do."""
        ways = cycle([self._ways[edge.to, lane] for lane in lanes])

        def noted(token: Token) -> None:
            self._note(TokenHash(_position(instance), next(ways), -1, digest_of(*token)))
            push(token)

        return noted

    def seeing(self, instance: Instance, edge: Edge, take: Take) -> Take:
        """The same take; a version that is seen again is not news."""
        way = self._ways[edge.to, (0, 0, instance.ctx.replica)]

        def noted() -> Token:
            token = take()
            version = token[0].version
            if self._seen.get(way) != version:
                self._seen[way] = version
                self._note(TokenHash(_position(instance), way, version, digest_of(*token)))
            return token

        return noted


def _position(instance: Instance) -> Position:
    return (
        *instance.site.position_prefix,
        instance.order_index,
        instance.ctx.replica,
        instance.fired,
    )


# digests


def digest_of(value: Any, clock: Clock) -> bytes:
    """A short digest of a token: equal for equal bits."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    _feed(digest.update, value)
    for key in sorted(clock.counts):
        digest.update(f"{key}{tuple(clock.counts[key])}".encode())
    return digest.digest()


def _feed(update: Callable[[Any], None], value: Any) -> None:
    """Kinds, lengths and contents: what differs in any of them gives other bytes."""
    if isinstance(value, np.ndarray):
        update(f"a{value.dtype.str}{value.shape}".encode())
        update(np.ascontiguousarray(value).data if value.dtype != object else repr(value).encode())
    elif isinstance(value, Batch):
        _feed_items(update, "b", value.columns)
    elif isinstance(value, State):
        _feed_items(update, "s", value.arrays)
        _feed_items(update, "c", value.command)
    elif isinstance(value, Mapping):
        _feed_items(update, "m", value)
    elif isinstance(value, list | tuple):
        update(f"l{len(value)}".encode())
        for one in value:
            _feed(update, one)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _feed_items(
            update, "d", {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        )
    else:
        update(_plain(value))


def _feed_items(update: Callable[[Any], None], kind: str, items: Mapping[Any, Any]) -> None:
    update(f"{kind}{len(items)}".encode())
    for key in sorted(items, key=str):
        update(f"k{key!s}\0".encode())
        _feed(update, items[key])


def _plain(value: Any) -> bytes:
    """Numbers, strings and bytes; of any other object its type alone, as it may hold anything."""
    if isinstance(value, float):
        return b"f" + struct.pack("<d", value)
    if isinstance(value, bool | int | str) or value is None:
        text = str(value).encode(errors="surrogatepass")
        return f"{type(value).__name__}{len(text)}:".encode() + text
    if isinstance(value, bytes):
        return f"y{len(value)}:".encode() + value
    if isinstance(value, np.generic):
        return f"n{value.dtype.str}".encode() + value.tobytes()
    return f"o{type(value).__qualname__}\0".encode()
