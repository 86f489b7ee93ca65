"""Hashes tokens when they are pushed, and versions when they are read.

Both happen in a firing, which has a position in the serial program. So the hashes are equal in every placement.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from flowrl.channels import UnsendableValue
from flowrl.core.batch import Batch
from flowrl.core.errors import NodeError
from flowrl.core.state import Clock, State
from flowrl.graph.model import Edge, Graph, PortRef
from flowrl.graph.replica_pairs import ReplicaPair, replica_pairs_of
from flowrl.runtime.instance import Instance
from flowrl.runtime.site_state import Position
from flowrl.runtime.streams import Push, PushInTurn, Take, Token
from flowrl.runtime.token_contents import encode_token

DIGEST_BYTES = 8


class TokenHash(NamedTuple):
    """The hash of a token that was pushed, or of a version that was read."""

    position: Position  # of the firing that pushed or read it
    pair: int  # the number of the replica pair
    version: int  # of a state; -1: a token of a stream
    digest: bytes
    # The token itself, if it is recorded; empty for a version that was recorded before.
    content: bytes = b""
    replica: int = 0  # which of a group, whose replicas fire at one position


TokenHashSink = Callable[[TokenHash], None]


def pair_numbers(graph: Graph) -> dict[tuple[PortRef, ReplicaPair], int]:
    """Number the replica pairs of all streams and states, by input, in the order of the graph."""
    edges = [edge for edge in graph.edges if edge.kind != "link"]
    pairs = [(edge.to, pair) for edge in edges for pair in replica_pairs_of(graph, edge)]
    return {pair: number for number, pair in enumerate(pairs)}


class TokenHasher:
    """Wraps the ports of instances, and passes the hashes of their tokens and versions to a sink.

    If inputs are named, only the tokens of their edges are hashed, and they are recorded: a hash has its token.
    """

    def __init__(self, graph: Graph, sink: TokenHashSink, recorded: Collection[str] = ()) -> None:
        self._numbers, self._sink = pair_numbers(graph), sink
        self._recorded = frozenset(recorded)
        # By replica pair: the version that was hashed last, and the round.
        self._last_read: dict[int, tuple[int, int]] = {}

    def hashed_push(
        self, instance: Instance, edge: Edge, pairs: list[ReplicaPair], push: Push
    ) -> Push:
        """Wrap a push to the queues of these pairs."""
        if not self._includes(edge):
            return push
        numbers = [self._numbers[edge.to, pair] for pair in pairs]
        shared = push if isinstance(push, PushInTurn) else None

        def hash_and_push(token: Token) -> None:
            digest, content = token_digest(*token), self._content(instance, token)
            number = numbers[shared.turn if shared else 0]
            self._sink(
                TokenHash(instance.position, number, -1, digest, content, instance.ctx.replica)
            )
            push(token)

        return hash_and_push

    def hashed_take(self, instance: Instance, edge: Edge, take: Take) -> Take:
        """Wrap a take. A version that is read several times in a round is hashed once."""
        if not self._includes(edge):
            return take
        number = self._numbers[edge.to, (0, 0, instance.ctx.replica)]

        def take_and_hash() -> Token:
            token = take()
            version = token[0].version
            last, read = self._last_read.get(number), (version, instance.position[0])
            if last != read:
                self._last_read[number] = read
                is_new = last is None or last[0] != version
                content = self._content(instance, token) if is_new else b""
                digest = token_digest(*token)
                replica = instance.ctx.replica
                self._sink(TokenHash(instance.position, number, version, digest, content, replica))
            return token

        return take_and_hash

    def _includes(self, edge: Edge) -> bool:
        return not self._recorded or str(edge.to) in self._recorded

    def _content(self, instance: Instance, token: Token) -> bytes:
        if not self._recorded:
            return b""
        try:
            return encode_token(token)
        except UnsendableValue as error:
            raise NodeError(instance.key, "recording its token", error) from error


def token_digest(value: Any, clock: Clock) -> bytes:
    """Return a short digest of a token, which depends on its bits only."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    _feed(digest.update, value)
    for key in sorted(clock.counts):
        digest.update(f"{key}{tuple(clock.counts[key])}".encode())
    return digest.digest()


def _feed(update: Callable[[Any], None], value: Any) -> None:
    """Feed the kind, length and content of a value, so that different values feed different bytes."""
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
        for item in value:
            _feed(update, item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _feed_items(
            update, "d", {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        )
    else:
        update(_plain_bytes(value))


def _feed_items(update: Callable[[Any], None], kind: str, items: Mapping[Any, Any]) -> None:
    update(f"{kind}{len(items)}".encode())
    for key in sorted(items, key=str):
        update(f"k{key!s}\0".encode())
        _feed(update, items[key])


def _plain_bytes(value: Any) -> bytes:
    """Return the bytes of a number, string or bytes object. An object of another class is represented by its type."""
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
