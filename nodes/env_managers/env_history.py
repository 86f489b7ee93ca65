"""The state of an env as data: the starts and actions of its episodes, and what it carries over between episodes.

An env is saved as its history since it last began afresh: how each episode began, and its actions, usually of the
current one alone. It is restored by playing these again (`history_replay.py`).

A history need not go back to the env's first episode if the env says what it carries over from one episode to the
next. A layer of an env (a wrapper, or the env itself) whose episodes depend on earlier ones defines two methods:

- `get_carry_over()` is called right before a reset. It returns what the next episode needs of those before, as JSON
  data, or None if the next episode continues where the last one ended.
- `set_carry_over(data)` is called before the first reset of a new env, as if those episodes had been
  played.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.nodes.env_managers.action_log import ActionLog, EpisodeActions
from flowrl.nodes.env_managers.episode_start import EpisodeStart
from flowrl.nodes.env_managers.episode_statistics import EpisodeStatistics

MAX_CARRY_OVER_BYTES = 4096  # of encoded text: shared rows have a field for it
CONTINUES = "null"  # the encoded carry-over of an env whose next episode continues the last one


class CarryOverLayers:
    """The layers of one env that carry data over. Their data is encoded as one text."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers = layers

    def get(self) -> str:
        """Encode the data of the layers right before a reset; `CONTINUES` if any layer continues its last episode."""
        data = [layer.get_carry_over() for layer in self._layers]
        text = CONTINUES if None in data else json.dumps(data, separators=(",", ":"))
        if len(text) > MAX_CARRY_OVER_BYTES:
            names = ", ".join(type(layer).__name__ for layer in self._layers)
            raise ValueError(
                f"{names}: get_carry_over() returned {len(text)} bytes of JSON; "
                f"the limit is {MAX_CARRY_OVER_BYTES}; carry over less"
            )
        return text

    def set(self, text: str) -> None:
        """Pass the data to the layers before the first reset; the text may be empty."""
        if text and text != CONTINUES:
            for layer, data in zip(self._layers, json.loads(text), strict=True):
                layer.set_carry_over(data)


def carry_over_layers(env: Any) -> CarryOverLayers | None:
    """The layers of an env that carry data over; None for most envs, which then pay nothing."""
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


@dataclass(frozen=True, slots=True)
class EnvHistory:
    """What an env played since it last began afresh, and where that led."""

    carried: str  # over from the episodes before
    episodes: Sequence[EpisodeActions]  # it is in the last of these
    complete: bool  # whether all of their actions were kept
    obs: Array  # the last observation
    episode_return: float  # of the last episode so far

    def compare(self, obs: Array, episode_return: float) -> str:
        """Describe how the result of a replay differs; empty if it is equal."""
        if episode_return != self.episode_return:
            return (
                f"its episode had returned {self.episode_return:g}, and {episode_return:g} when it was "
                "replayed"
            )
        if not np.array_equal(obs, self.obs):
            return "its last observation was another one when its episode was replayed"
        return ""


def encode_histories(
    log: ActionLog, carried: Sequence[str], obs: Array, column: Column
) -> dict[str, Any]:
    """The histories of all envs as data; `column` is that of actions."""
    rows, options, actions, complete = [], [], [], []
    for index in range(len(carried)):
        episodes, is_complete = log.episodes(index)
        complete.append(is_complete)
        for start, taken in episodes[: None if is_complete else 1]:
            kept = taken if is_complete else []
            rows.append((index, start.seed, len(kept)))
            options.append(start.options)
            actions += kept
    return {
        "actions": np.array(actions, column.dtype).reshape(len(actions), *column.shape),
        "episodes": np.array(rows, np.int64),  # of each: the env, the seed, the number of actions
        "options": options,  # of each episode's reset, encoded
        "complete": np.array(complete),
        "carried": list(carried),
        "seen": np.array(obs),
    }


def decode_histories(state: Mapping[str, Any], statistics: EpisodeStatistics) -> list[EnvHistory]:
    """The history of each env. Their returns are those of the statistics, which were restored before."""
    rows = np.asarray(state["episodes"])
    parts = np.split(np.asarray(state["actions"]), np.cumsum(rows[:, 2])[:-1])
    episodes: list[list[EpisodeActions]] = [[] for _ in range(statistics.count)]
    for (index, seed, _), options, actions in zip(
        rows.tolist(), state["options"], parts, strict=True
    ):
        episodes[index].append((EpisodeStart(seed, options), actions))
    returns = statistics.returns.tolist()
    fields = zip(state["carried"], episodes, state["complete"], state["seen"], returns, strict=True)
    return [EnvHistory(*values) for values in fields]
