"""Replay buffers of other libraries (and flowrl's), each measured by its own library's Python.

`python -m bench.peers.buffers NAME vec|image uniform|prioritised ROWS` prints one line of JSON: rows
a second that are pushed, sampled, and sampled with an update of their priorities.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

PUSHED, SAMPLED = 64, 256  # rows of a push, and of a batch
SHAPES = {"vec": ((84,), "float32"), "image": ((4, 84, 84), "uint8")}
FILL_S, MEASURE_S, REPEATS = 12.0, 0.4, 5

Columns = dict[str, Any]


def chunks(what: str, count: int) -> list[Columns]:
    """Transitions of 64 envs, a few different ones."""
    shape, dtype = SHAPES[what]
    rng = np.random.default_rng(0)
    return [
        {
            "obs": rng.integers(0, 255, (PUSHED, *shape)).astype(dtype),
            "action": rng.integers(0, 6, PUSHED),
            "reward": rng.random(PUSHED, np.float32),
            "next_obs": rng.integers(0, 255, (PUSHED, *shape)).astype(dtype),
            "done": rng.random(PUSHED) < 0.01,
        }
        for _ in range(count)
    ]


def single(chunk: Columns) -> list[Columns]:
    """The rows of a chunk, apart."""
    return [{name: array[i] for name, array in chunk.items()} for i in range(PUSHED)]


class Numpy:
    """No library: slices in, `take` out. What memory allows."""

    def __init__(self, what: str, prioritised: bool, rows: int) -> None:
        self.size, self.next, self.rng = rows, 0, np.random.default_rng(0)
        if prioritised:
            raise ValueError("uniform only")
        chunk = chunks(what, 1)[0]
        self.held = {k: np.zeros((rows, *v.shape[1:]), v.dtype) for k, v in chunk.items()}

    def push(self, chunk: Columns) -> None:
        stop = self.next + PUSHED
        if stop > self.size:
            self.next, stop = 0, PUSHED
        for name, array in chunk.items():
            self.held[name][self.next : stop] = array
        self.next = stop

    def sample(self) -> Any:
        index = self.rng.integers(self.size, size=SAMPLED)
        return {name: array.take(index, 0) for name, array in self.held.items()}


class Flowrl:
    """flowrl's buffers, by hand."""

    def __init__(self, what: str, prioritised: bool, rows: int) -> None:
        from flowrl.nodes.buffers.advanced_replay_buffer import AdvancedReplayBuffer
        from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer

        kind = AdvancedReplayBuffer if prioritised else NaiveReplayBuffer
        self.buffer: Any = kind(size=rows, batch_size=SAMPLED)

    def chunk(self, chunk: Columns) -> Any:
        from flowrl.core.batch import Batch

        return Batch(chunk)

    def push(self, chunk: Any) -> None:
        self.buffer.push(chunk)

    def sample(self) -> Any:
        return self.buffer.sample()

    def update(self, batch: Any, priorities: Any) -> None:
        self.buffer.update(priorities)


class Cpprb:
    """cpprb."""

    def __init__(self, what: str, prioritised: bool, rows: int) -> None:
        import cpprb

        shape, dtype = SHAPES[what]
        obs = {"shape": shape, "dtype": np.dtype(dtype)}
        columns = {"obs": obs, "next_obs": obs, "action": {"dtype": np.int64}}
        columns |= {"reward": {"dtype": np.float32}, "done": {"dtype": np.bool_}}
        kind = cpprb.PrioritizedReplayBuffer if prioritised else cpprb.ReplayBuffer
        self.buffer = kind(rows, columns)
        self.more = {"beta": 0.4} if prioritised else {}

    def push(self, chunk: Columns) -> None:
        self.buffer.add(**chunk)

    def sample(self) -> Any:
        return self.buffer.sample(SAMPLED, **self.more)

    def update(self, batch: Any, priorities: Any) -> None:
        self.buffer.update_priorities(batch["indexes"], priorities)


class Sb3:
    """stable-baselines3."""

    def __init__(self, what: str, prioritised: bool, rows: int) -> None:
        from gymnasium import spaces
        from stable_baselines3.common.buffers import ReplayBuffer

        if prioritised:
            raise ValueError("it has no prioritised buffer")
        shape, dtype = SHAPES[what]
        obs = spaces.Box(0, 255, shape, np.dtype(dtype).type)
        self.buffer = ReplayBuffer(rows, obs, spaces.Discrete(6), device="cpu", n_envs=PUSHED)

    def push(self, chunk: Columns) -> None:
        given = [chunk[name] for name in ("obs", "next_obs", "action", "reward", "done")]
        self.buffer.add(*given, NO_INFOS)

    def sample(self) -> Any:
        return self.buffer.sample(SAMPLED)


NO_INFOS: list[dict[str, Any]] = [{}] * PUSHED


class Tianshou:
    """tianshou: one buffer for each of 64 envs, as its collectors use it."""

    def __init__(self, what: str, prioritised: bool, rows: int) -> None:
        from tianshou.data import PrioritizedVectorReplayBuffer, VectorReplayBuffer

        if prioritised:
            self.buffer: Any = PrioritizedVectorReplayBuffer(rows, PUSHED, alpha=0.6, beta=0.4)
        else:
            self.buffer = VectorReplayBuffer(rows, PUSHED)

    def chunk(self, chunk: Columns) -> Any:
        from tianshou.data import Batch

        return Batch(
            obs=chunk["obs"],
            act=chunk["action"],
            rew=chunk["reward"],
            terminated=chunk["done"],
            truncated=np.zeros(PUSHED, bool),
            obs_next=chunk["next_obs"],
            info=Batch(),
        )

    def push(self, chunk: Any) -> None:
        self.buffer.add(chunk)

    def sample(self) -> Any:
        return self.buffer.sample(SAMPLED)

    def update(self, batch: Any, priorities: Any) -> None:
        self.buffer.update_weight(batch[1], priorities)


class TianshouSingle(Tianshou):
    """tianshou: one buffer, which takes one transition at a time, and samples faster."""

    def __init__(self, what: str, prioritised: bool, rows: int) -> None:
        from tianshou.data import PrioritizedReplayBuffer, ReplayBuffer

        more = {"alpha": 0.6, "beta": 0.4} if prioritised else {}
        self.buffer = (PrioritizedReplayBuffer if prioritised else ReplayBuffer)(rows, **more)

    def chunk(self, chunk: Columns) -> Any:
        whole = super().chunk(chunk)
        return [whole[i] for i in range(PUSHED)]

    def push(self, chunk: Any) -> None:
        for row in chunk:
            self.buffer.add(row)


class Torchrl:
    """torchrl, in memory."""

    def __init__(self, what: str, prioritised: bool, rows: int) -> None:
        from torchrl.data import (
            LazyTensorStorage,
            TensorDictPrioritizedReplayBuffer,
            TensorDictReplayBuffer,
        )

        storage = LazyTensorStorage(rows)
        if prioritised:
            self.buffer: Any = TensorDictPrioritizedReplayBuffer(
                alpha=0.6, beta=0.4, storage=storage, batch_size=SAMPLED
            )
        else:
            self.buffer = TensorDictReplayBuffer(storage=storage, batch_size=SAMPLED)

    def chunk(self, chunk: Columns) -> Any:
        import torch
        from tensordict import TensorDict

        tensors = {name: torch.from_numpy(array) for name, array in chunk.items()}
        return TensorDict(tensors, batch_size=[PUSHED])

    def push(self, chunk: Any) -> None:
        self.buffer.extend(chunk)

    def sample(self) -> Any:
        return self.buffer.sample()

    def update(self, batch: Any, priorities: Any) -> None:
        import torch

        self.buffer.update_priority(batch["index"], torch.from_numpy(priorities))


class Ding:
    """DI-engine: naive and advanced buffers; a sample is collated, as its learners do."""

    def __init__(self, what: str, prioritised: bool, rows: int) -> None:
        from ding.worker import AdvancedReplayBuffer, NaiveReplayBuffer

        kind = AdvancedReplayBuffer if prioritised else NaiveReplayBuffer
        config = kind.default_config()
        config.replay_buffer_size = rows
        more = {"exp_name": "/tmp/bench_ding"} if prioritised else {}
        self.buffer = kind(config, None, **more)

    def chunk(self, chunk: Columns) -> Any:
        import torch

        rows = single(chunk)
        for row in rows:
            row["obs"] = torch.from_numpy(row["obs"])
            row["next_obs"] = torch.from_numpy(row["next_obs"])
        return rows

    def push(self, chunk: Any) -> None:
        self.buffer.push([dict(row) for row in chunk], cur_collector_envstep=0)

    def sample(self) -> Any:
        from ding.utils.data import default_collate

        found = self.buffer.sample(SAMPLED, cur_learner_iter=0)
        return found, default_collate(found)

    def update(self, batch: Any, priorities: Any) -> None:
        rows = batch[0]
        info = {"priority": priorities.tolist()}
        for name in ("replay_unique_id", "replay_buffer_idx"):
            info[name] = [row[name] for row in rows]
        self.buffer.update(info)


class Reverb:
    """Reverb, its server in this process."""

    def __init__(self, what: str, prioritised: bool, rows: int) -> None:
        import reverb

        of = reverb.selectors
        table = reverb.Table(
            name="rows",
            sampler=of.Prioritized(0.6) if prioritised else of.Uniform(),
            remover=of.Fifo(),
            max_size=rows,
            rate_limiter=reverb.rate_limiters.MinSize(1),
        )
        self.server = reverb.Server([table])
        self.client = self.server.localhost_client()

    def chunk(self, chunk: Columns) -> Any:
        return [list(row.values()) for row in single(chunk)]

    def push(self, chunk: Any) -> None:
        with self.client.writer(1) as writer:
            for row in chunk:
                writer.append(row)
                writer.create_item("rows", 1, 1.0)

    def sample(self) -> Any:
        return list(self.client.sample("rows", SAMPLED))

    def update(self, batch: Any, priorities: Any) -> None:
        keys = [item[0].info.key for item in batch]
        self.client.mutate_priorities("rows", dict(zip(keys, priorities.tolist(), strict=True)))


KINDS: dict[str, Any] = {
    "numpy": Numpy,
    "flowrl": Flowrl,
    "cpprb": Cpprb,
    "sb3": Sb3,
    "tianshou": Tianshou,
    "tianshou-single": TianshouSingle,
    "torchrl": Torchrl,
    "ding": Ding,
    "reverb": Reverb,
}


def rate(do: Callable[[], Any], rows: int) -> float:
    """Rows a second, the median of some repeats."""
    found = []
    for _ in range(REPEATS):
        times, begun_s = 0, time.perf_counter()
        while time.perf_counter() - begun_s < MEASURE_S or times < 3:
            do()
            times += 1
        found.append(times * rows / (time.perf_counter() - begun_s))
    return sorted(found)[REPEATS // 2]


def measure(name: str, what: str, prioritised: bool, rows: int) -> dict[str, float]:
    """One cell: fill it (as far as there is time), then push, sample, sample and update."""
    buffer = KINDS[name](what, prioritised, rows)
    made = [getattr(buffer, "chunk", lambda c: c)(c) for c in chunks(what, 8)]
    turn = iter(range(10**12))
    push = lambda: buffer.push(made[next(turn) % len(made)])  # noqa: E731
    filled, begun_s = 0, time.perf_counter()
    while filled < rows and time.perf_counter() - begun_s < FILL_S:
        push()
        filled += PUSHED
    found = {"filled": min(filled, rows), "push": rate(push, PUSHED)}
    found["sample"] = rate(buffer.sample, SAMPLED)
    if prioritised:
        priorities = np.random.default_rng(0).random((8, SAMPLED))
        found["update"] = rate(
            lambda: buffer.update(buffer.sample(), priorities[next(turn) % 8]), SAMPLED
        )
    return found


def main(words: list[str]) -> None:
    """One cell, as JSON."""
    name, what, how, rows = words
    try:
        import torch

        torch.set_num_threads(1)
    except ImportError:
        pass
    print(json.dumps(measure(name, what, how == "prioritised", int(rows))))


if __name__ == "__main__":
    main(sys.argv[1:])
