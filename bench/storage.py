"""Kinds of storage, on real Atari frames: bytes for each transition, rows a second in and out.

    python -m bench storage             three games, 20,000 transitions each (about two minutes)
    python -m bench storage TRANSITIONS [GAME…]     a trial

Transitions are four stacked frames of 84×84, obs and next_obs, of a random player that repeats each action
four times; pushed by 64, sampled by 256. `once` stores each frame once. On one thread.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.core.batch import Batch
from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
from flowrl.nodes.buffers.storage.compressed import CompressedStorage
from flowrl.nodes.buffers.storage.mapped import MappedStorage
from flowrl.nodes.buffers.storage.storage import MemoryStorage, Storage

GAMES = ("Pong", "Breakout", "SpaceInvaders")
TRANSITIONS, PUSHED, SAMPLED, MEASURE_S = 20_000, 64, 256, 1.0

Row = dict[str, float]


def main(arguments: Sequence[str]) -> dict[str, dict[str, Row]]:
    """Measure and print."""
    transitions = int(arguments[0]) if arguments else TRANSITIONS
    found: dict[str, dict[str, Row]] = {}
    for game in arguments[1:] or GAMES:
        tokens = list(itertools.islice(played(game), transitions // PUSHED))
        folder = Path(tempfile.mkdtemp())
        try:
            found[game] = {
                name: measured(tokens, storage, once)
                for name, (storage, once) in kinds(folder).items()
            }
        finally:
            shutil.rmtree(folder)
        print(table(game, found[game]), flush=True)
    return found


def kinds(folder: Path) -> dict[str, tuple[Storage, bool]]:
    """What is measured: the storage, and whether observations are stored once."""
    return {
        "memory": (MemoryStorage(), False),
        "memory, once": (MemoryStorage(), True),
        "mapped, once": (MappedStorage(path=str(folder / "once")), True),
        "compressed (lz4)": (CompressedStorage(codec="lz4"), False),
        "compressed (lz4), once": (CompressedStorage(codec="lz4"), True),
        "compressed (zlib), once": (CompressedStorage(codec="zlib"), True),
    }


def played(game: str) -> Iterator[Batch]:
    """Tokens of transitions."""
    import ale_py
    import gymnasium
    from PIL import Image

    gymnasium.register_envs(ale_py)
    env = gymnasium.make(f"ALE/{game}-v5", obs_type="grayscale", frameskip=4)
    env.action_space.seed(0)

    def seen(screen: Any) -> Any:
        return np.asarray(Image.fromarray(screen).resize((84, 84), Image.Resampling.BILINEAR))

    stack = np.stack([seen(env.reset(seed=0)[0])] * 4)
    while True:
        rows: dict[str, list[Any]] = {
            n: [] for n in ("obs", "action", "reward", "next_obs", "done")
        }
        for _ in range(PUSHED):
            action = env.action_space.sample()
            screen, reward, terminated, truncated, _ = env.step(action)
            after = np.concatenate([stack[1:], seen(screen)[None]])
            done = terminated or truncated
            for name, value in zip(rows, (stack, action, reward, after, done), strict=True):
                rows[name].append(value)
            stack = np.stack([seen(env.reset()[0])] * 4) if done else after
        yield Batch({name: np.array(values) for name, values in rows.items()})


def measured(tokens: Sequence[Batch], storage: Storage, once: bool) -> Row:
    """One kind of storage: filled twice, the second time on the clock."""
    size = len(tokens) * PUSHED
    more: Mapping[str, Any] = {"store_once": True, "frames": 4} if once else {}
    buffer = NaiveReplayBuffer(size=size, batch_size=SAMPLED, storage=storage, **more)
    for token in tokens:
        buffer.push(token)
    turn = itertools.cycle(tokens)
    found = {
        "bytes": buffer.ring.nbytes / size,
        "push": rate(lambda: buffer.push(next(turn)), PUSHED),
        "sample": rate(buffer.sample, SAMPLED),
    }
    buffer.close()
    return found


def rate(do: Callable[[], Any], rows: int) -> float:
    """Rows a second."""
    times, begun_s = 0, time.perf_counter()
    while time.perf_counter() - begun_s < MEASURE_S:
        do()
        times += 1
    return times * rows / (time.perf_counter() - begun_s)


def table(game: str, rows: Mapping[str, Row]) -> str:
    """In Markdown."""
    lines = [f"\n| {game} | bytes | push k/s | sample k/s |", "|---|---|---|---|"]
    for name, row in rows.items():
        rates = " | ".join(f"{row[k] / 1e3:,.0f}" for k in ("push", "sample"))
        lines.append(f"| {name} | {row['bytes']:,.0f} | {rates} |")
    return "\n".join(lines)
