"""Data that an env carries from one episode to the next, so that an episode can be replayed without those before it.

A layer of an env (a wrapper, or the env itself) whose episodes depend on earlier ones defines two methods:

- `get_carry_over()` is called right before a reset. It returns what the next episode needs of those before, as JSON
  data, or None if the next episode continues where the last one ended.
- `set_carry_over(data)` is called before the first reset of an env that is made anew, as if those episodes had been
  played.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

MAX_BYTES = 4096  # of encoded text: shared rows have a field for it
CONTINUES = "null"


class CarryOverLayers:
    """The layers of one env that carry data, encoded as one text."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers = layers

    def get(self) -> str:
        """Called right before a reset; `CONTINUES` if any layer continues its last episode."""
        data = [layer.get_carry_over() for layer in self._layers]
        text = CONTINUES if None in data else json.dumps(data, separators=(",", ":"))
        if len(text) > MAX_BYTES:
            names = [type(layer).__name__ for layer in self._layers]
            raise ValueError(
                f"{names} carry over {len(text)} bytes of text; the limit is {MAX_BYTES}"
            )
        return text

    def set(self, text: str) -> None:
        """Called before the first reset; the text may be empty."""
        if text and text != CONTINUES:
            for layer, data in zip(self._layers, json.loads(text), strict=True):
                layer.set_carry_over(data)


def carry_over_layers(env: Any) -> CarryOverLayers | None:
    """The layers of an env that carry data; None for most envs, which pay nothing."""
    found = [layer for layer in _layers(env) if hasattr(type(layer), "get_carry_over")]
    return CarryOverLayers(found) if found else None


def _layers(env: Any) -> Iterator[Any]:
    from gymnasium import Wrapper

    while isinstance(env, Wrapper):
        yield env
        env = env.env
    yield env
    for inner in getattr(env, "layers", ()):  # of agents, each in its own wrappers
        yield from _layers(inner)
