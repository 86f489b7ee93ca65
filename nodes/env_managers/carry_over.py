"""What an env keeps from one episode to the next: with that, an episode is begun again without those before.

A layer of an env (a wrapper, or the env itself) that looks across episodes defines two methods:
`carried()` is asked right before a reset, and gives what the next episode has of those before it, as
JSON data; None says that it goes on where the last one ended. `carry(data)` comes before the first
reset of an env that is made anew: as if those episodes had been.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

MAX_BYTES = 4096  # of text: it has a place in memory that workers share
CONTINUES = "null"


class CarryOverLayers:
    """The layers of one env that keep something; what they keep is one text."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers = layers

    def carried(self) -> str:
        """To be asked right before a reset; `GOES_ON` where any layer goes on."""
        found = [layer.carried() for layer in self._layers]
        text = CONTINUES if None in found else json.dumps(found, separators=(",", ":"))
        if len(text) > MAX_BYTES:
            who = [type(layer).__name__ for layer in self._layers]
            raise ValueError(f"{who} carry {len(text)} bytes of text; keep it to {MAX_BYTES}")
        return text

    def carry(self, text: str) -> None:
        """Before the first reset: as if the episodes had been that left this text (maybe none)."""
        if text and text != CONTINUES:
            for layer, data in zip(self._layers, json.loads(text), strict=True):
                layer.carry(data)


def carry_over_layers(env: Any) -> CarryOverLayers | None:
    """Those of an env; most have none, and pay nothing."""
    found = [layer for layer in _layers(env) if hasattr(type(layer), "carried")]
    return CarryOverLayers(found) if found else None


def _layers(env: Any) -> Iterator[Any]:
    from gymnasium import Wrapper

    while isinstance(env, Wrapper):
        yield env
        env = env.env
    yield env
    for inner in getattr(env, "layers", ()):  # of agents, each in its own wrappers
        yield from _layers(inner)
