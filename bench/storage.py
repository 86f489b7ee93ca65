"""Kinds of buffer storage on real Atari frames: bytes per transition, and rows per second in and out.

    python -m bench storage             three games, 20,000 transitions each (about two minutes)
    python -m bench storage TRANSITIONS [GAME…]     a trial

The observations of a transition are four stacked frames of 84×84. A random player repeats each action four
times. Transitions are pushed by 64 and sampled by 256, on one thread. `once` stores each frame once.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench._arguments import benchmark_parser
from flowrl.core.batch import Batch
from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
from flowrl.nodes.buffers.storage.compressed import CompressedStorage
from flowrl.nodes.buffers.storage.mapped import MappedStorage
from flowrl.nodes.buffers.storage.storage import MemoryStorage, Storage

GAMES = ("Pong", "Breakout", "SpaceInvaders")
TRANSITIONS, PUSH_ROWS, BATCH_ROWS, MEASURE_S = 20_000, 64, 256, 1.0

Row = dict[str, float]


def main(arguments: Sequence[str]) -> dict[str, dict[str, Row]]:
    """Measure, and print the results."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument("transitions", nargs="?", type=int, default=TRANSITIONS)
    parser.add_argument("games", nargs="*", default=GAMES, metavar="GAME")
    options = parser.parse_args(arguments)
    results: dict[str, dict[str, Row]] = {}
    for game in options.games:
        tokens = list(itertools.islice(play(game), options.transitions // PUSH_ROWS))
        with tempfile.TemporaryDirectory() as folder:
            results[game] = {
                name: measure(tokens, storage, once)
                for name, (storage, once) in storages(Path(folder)).items()
            }
        print(table(game, results[game]), flush=True)
    return results


def storages(folder: Path) -> dict[str, tuple[Storage, bool]]:
    """The storages to measure, and whether each stores observations once."""
    return {
        "memory": (MemoryStorage(), False),
        "memory, once": (MemoryStorage(), True),
        "mapped, once": (MappedStorage(path=str(folder / "once")), True),
        "compressed (lz4)": (CompressedStorage(codec="lz4"), False),
        "compressed (lz4), once": (CompressedStorage(codec="lz4"), True),
        "compressed (zlib), once": (CompressedStorage(codec="zlib"), True),
    }


def play(game: str) -> Iterator[Batch]:
    """Yield tokens of a random player's transitions."""
    import ale_py
    import gymnasium
    from PIL import Image

    gymnasium.register_envs(ale_py)
    env = gymnasium.make(f"ALE/{game}-v5", obs_type="grayscale", frameskip=4)
    env.action_space.seed(0)

    def resize(screen: Any) -> Any:
        return np.asarray(Image.fromarray(screen).resize((84, 84), Image.Resampling.BILINEAR))

    stack = np.stack([resize(env.reset(seed=0)[0])] * 4)
    while True:
        rows: dict[str, list[Any]] = {
            n: [] for n in ("obs", "action", "reward", "next_obs", "done")
        }
        for _ in range(PUSH_ROWS):
            action = env.action_space.sample()
            screen, reward, terminated, truncated, _ = env.step(action)
            next_stack = np.concatenate([stack[1:], resize(screen)[None]])
            done = terminated or truncated
            for name, value in zip(rows, (stack, action, reward, next_stack, done), strict=True):
                rows[name].append(value)
            stack = np.stack([resize(env.reset()[0])] * 4) if done else next_stack
        yield Batch({name: np.array(values) for name, values in rows.items()})


def measure(tokens: Sequence[Batch], storage: Storage, once: bool) -> Row:
    """Measure one storage; its buffer is filled before the clock starts."""
    size = len(tokens) * PUSH_ROWS
    options: Mapping[str, Any] = {"store_once": True, "frames": 4} if once else {}
    buffer = NaiveReplayBuffer(size=size, batch_size=BATCH_ROWS, storage=storage, **options)
    for token in tokens:
        buffer.push(token)
    next_tokens = itertools.cycle(tokens)
    row = {
        "bytes": buffer.ring.nbytes / size,
        "push": row_rate(lambda: buffer.push(next(next_tokens)), PUSH_ROWS),
        "sample": row_rate(buffer.sample, BATCH_ROWS),
    }
    buffer.close()
    return row


def row_rate(call: Callable[[], Any], rows: int) -> float:
    """The rows per second of a call that handles `rows` rows."""
    calls, start_s = 0, time.perf_counter()
    while time.perf_counter() - start_s < MEASURE_S:
        call()
        calls += 1
    return calls * rows / (time.perf_counter() - start_s)


def table(game: str, rows: Mapping[str, Row]) -> str:
    """The bytes per transition and thousands of rows per second, in Markdown."""
    lines = [f"\n| {game} | bytes | push, k/s | sample, k/s |", "|---|---|---|---|"]
    for name, row in rows.items():
        rates = " | ".join(f"{row[k] / 1e3:,.0f}" for k in ("push", "sample"))
        lines.append(f"| {name} | {row['bytes']:,.0f} | {rates} |")
    return "\n".join(lines)
