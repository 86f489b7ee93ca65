"""The replay buffers that `bench buffer` compares, each measured in its own library's Python.

`python -m bench.peers.buffers NAME vector|image uniform|prioritised ROWS` prints one line of JSON: the rows
per second that are pushed, sampled, and sampled with an update of their priorities.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

PUSH_ROWS, BATCH_ROWS = 64, 256
SHAPES = {"vector": ((84,), "float32"), "image": ((4, 84, 84), "uint8")}
FILL_S, MEASURE_S, REPEATS = 12.0, 0.4, 5

Columns = dict[str, Any]


def make_chunks(obs_kind: str, count: int) -> list[Columns]:
    """Make chunks of transitions to push, one transition for each of 64 envs."""
    shape, dtype = SHAPES[obs_kind]
    rng = np.random.default_rng(0)
    return [
        {
            "obs": rng.integers(0, 255, (PUSH_ROWS, *shape)).astype(dtype),
            "action": rng.integers(0, 6, PUSH_ROWS),
            "reward": rng.random(PUSH_ROWS, np.float32),
            "next_obs": rng.integers(0, 255, (PUSH_ROWS, *shape)).astype(dtype),
            "done": rng.random(PUSH_ROWS) < 0.01,
        }
        for _ in range(count)
    ]


def split_rows(chunk: Columns) -> list[Columns]:
    return [{name: array[i] for name, array in chunk.items()} for i in range(PUSH_ROWS)]


class NumpyBuffer:
    """No library, only slices and `take`: the limit that memory sets."""

    def __init__(self, obs_kind: str, prioritised: bool, rows: int) -> None:
        self.size, self.next, self.rng = rows, 0, np.random.default_rng(0)
        if prioritised:
            raise ValueError("uniform only")
        chunk = make_chunks(obs_kind, 1)[0]
        self.columns = {k: np.zeros((rows, *v.shape[1:]), v.dtype) for k, v in chunk.items()}

    def push(self, chunk: Columns) -> None:
        stop = self.next + PUSH_ROWS
        if stop > self.size:
            self.next, stop = 0, PUSH_ROWS
        for name, array in chunk.items():
            self.columns[name][self.next : stop] = array
        self.next = stop

    def sample(self) -> Any:
        index = self.rng.integers(self.size, size=BATCH_ROWS)
        return {name: array.take(index, 0) for name, array in self.columns.items()}


class FlowrlBuffer:
    """flowrl's buffers, without the engine."""

    def __init__(self, obs_kind: str, prioritised: bool, rows: int) -> None:
        from flowrl.nodes.buffers.advanced_replay_buffer import AdvancedReplayBuffer
        from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer

        buffer_class = AdvancedReplayBuffer if prioritised else NaiveReplayBuffer
        self.buffer: Any = buffer_class(size=rows, batch_size=BATCH_ROWS)

    def convert(self, chunk: Columns) -> Any:
        from flowrl.core.batch import Batch

        return Batch(chunk)

    def push(self, chunk: Any) -> None:
        self.buffer.push(chunk)

    def sample(self) -> Any:
        return self.buffer.sample()

    def update(self, batch: Any, priorities: Any) -> None:
        self.buffer.update(priorities)


class CpprbBuffer:
    def __init__(self, obs_kind: str, prioritised: bool, rows: int) -> None:
        import cpprb

        shape, dtype = SHAPES[obs_kind]
        obs = {"shape": shape, "dtype": np.dtype(dtype)}
        columns = {"obs": obs, "next_obs": obs, "action": {"dtype": np.int64}}
        columns |= {"reward": {"dtype": np.float32}, "done": {"dtype": np.bool_}}
        buffer_class = cpprb.PrioritizedReplayBuffer if prioritised else cpprb.ReplayBuffer
        self.buffer = buffer_class(rows, columns)
        self.sample_options = {"beta": 0.4} if prioritised else {}

    def push(self, chunk: Columns) -> None:
        self.buffer.add(**chunk)

    def sample(self) -> Any:
        return self.buffer.sample(BATCH_ROWS, **self.sample_options)

    def update(self, batch: Any, priorities: Any) -> None:
        self.buffer.update_priorities(batch["indexes"], priorities)


class Sb3Buffer:
    """stable-baselines3."""

    def __init__(self, obs_kind: str, prioritised: bool, rows: int) -> None:
        from gymnasium import spaces
        from stable_baselines3.common.buffers import ReplayBuffer

        if prioritised:
            raise ValueError("stable-baselines3 has no prioritised buffer")
        shape, dtype = SHAPES[obs_kind]
        obs = spaces.Box(0, 255, shape, np.dtype(dtype).type)
        self.buffer = ReplayBuffer(rows, obs, spaces.Discrete(6), device="cpu", n_envs=PUSH_ROWS)

    def push(self, chunk: Columns) -> None:
        columns = [chunk[name] for name in ("obs", "next_obs", "action", "reward", "done")]
        self.buffer.add(*columns, NO_INFOS)

    def sample(self) -> Any:
        return self.buffer.sample(BATCH_ROWS)


NO_INFOS: list[dict[str, Any]] = [{}] * PUSH_ROWS


class TianshouBuffer:
    """tianshou, with one buffer for each of 64 envs, as its collectors use them."""

    def __init__(self, obs_kind: str, prioritised: bool, rows: int) -> None:
        from tianshou.data import PrioritizedVectorReplayBuffer, VectorReplayBuffer

        if prioritised:
            self.buffer: Any = PrioritizedVectorReplayBuffer(rows, PUSH_ROWS, alpha=0.6, beta=0.4)
        else:
            self.buffer = VectorReplayBuffer(rows, PUSH_ROWS)

    def convert(self, chunk: Columns) -> Any:
        from tianshou.data import Batch

        return Batch(
            obs=chunk["obs"],
            act=chunk["action"],
            rew=chunk["reward"],
            terminated=chunk["done"],
            truncated=np.zeros(PUSH_ROWS, bool),
            obs_next=chunk["next_obs"],
            info=Batch(),
        )

    def push(self, chunk: Any) -> None:
        self.buffer.add(chunk)

    def sample(self) -> Any:
        return self.buffer.sample(BATCH_ROWS)

    def update(self, batch: Any, priorities: Any) -> None:
        self.buffer.update_weight(batch[1], priorities)


class TianshouSingleBuffer(TianshouBuffer):
    """tianshou, with a single buffer, which takes one transition at a time and samples faster."""

    def __init__(self, obs_kind: str, prioritised: bool, rows: int) -> None:
        from tianshou.data import PrioritizedReplayBuffer, ReplayBuffer

        if prioritised:
            self.buffer = PrioritizedReplayBuffer(rows, alpha=0.6, beta=0.4)
        else:
            self.buffer = ReplayBuffer(rows)

    def convert(self, chunk: Columns) -> Any:
        batch = super().convert(chunk)
        return [batch[i] for i in range(PUSH_ROWS)]

    def push(self, chunk: Any) -> None:
        for row in chunk:
            self.buffer.add(row)


class TorchrlBuffer:
    """torchrl, with its storage in memory."""

    def __init__(self, obs_kind: str, prioritised: bool, rows: int) -> None:
        from torchrl.data import (
            LazyTensorStorage,
            TensorDictPrioritizedReplayBuffer,
            TensorDictReplayBuffer,
        )

        storage = LazyTensorStorage(rows)
        if prioritised:
            self.buffer: Any = TensorDictPrioritizedReplayBuffer(
                alpha=0.6, beta=0.4, storage=storage, batch_size=BATCH_ROWS
            )
        else:
            self.buffer = TensorDictReplayBuffer(storage=storage, batch_size=BATCH_ROWS)

    def convert(self, chunk: Columns) -> Any:
        import torch
        from tensordict import TensorDict

        tensors = {name: torch.from_numpy(array) for name, array in chunk.items()}
        return TensorDict(tensors, batch_size=[PUSH_ROWS])

    def push(self, chunk: Any) -> None:
        self.buffer.extend(chunk)

    def sample(self) -> Any:
        return self.buffer.sample()

    def update(self, batch: Any, priorities: Any) -> None:
        import torch

        self.buffer.update_priority(batch["index"], torch.from_numpy(priorities))


class DingBuffer:
    """DI-engine's naive and advanced buffers; samples are collated, as its learners do."""

    def __init__(self, obs_kind: str, prioritised: bool, rows: int) -> None:
        from ding.worker import AdvancedReplayBuffer, NaiveReplayBuffer

        buffer_class = AdvancedReplayBuffer if prioritised else NaiveReplayBuffer
        config = buffer_class.default_config()
        config.replay_buffer_size = rows
        options = {"exp_name": "/tmp/bench_ding"} if prioritised else {}
        self.buffer = buffer_class(config, None, **options)

    def convert(self, chunk: Columns) -> Any:
        import torch

        rows = split_rows(chunk)
        for row in rows:
            row["obs"] = torch.from_numpy(row["obs"])
            row["next_obs"] = torch.from_numpy(row["next_obs"])
        return rows

    def push(self, chunk: Any) -> None:
        self.buffer.push([dict(row) for row in chunk], cur_collector_envstep=0)

    def sample(self) -> Any:
        from ding.utils.data import default_collate

        rows = self.buffer.sample(BATCH_ROWS, cur_learner_iter=0)
        return rows, default_collate(rows)

    def update(self, batch: Any, priorities: Any) -> None:
        rows = batch[0]
        info = {"priority": priorities.tolist()}
        for name in ("replay_unique_id", "replay_buffer_idx"):
            info[name] = [row[name] for row in rows]
        self.buffer.update(info)


class ReverbBuffer:
    """Reverb, with its server in this process."""

    def __init__(self, obs_kind: str, prioritised: bool, rows: int) -> None:
        import reverb

        selectors = reverb.selectors
        table = reverb.Table(
            name="rows",
            sampler=selectors.Prioritized(0.6) if prioritised else selectors.Uniform(),
            remover=selectors.Fifo(),
            max_size=rows,
            rate_limiter=reverb.rate_limiters.MinSize(1),
        )
        self.server = reverb.Server([table])
        self.client = self.server.localhost_client()

    def convert(self, chunk: Columns) -> Any:
        return [list(row.values()) for row in split_rows(chunk)]

    def push(self, chunk: Any) -> None:
        with self.client.writer(1) as writer:
            for row in chunk:
                writer.append(row)
                writer.create_item("rows", 1, 1.0)

    def sample(self) -> Any:
        return list(self.client.sample("rows", BATCH_ROWS))

    def update(self, batch: Any, priorities: Any) -> None:
        keys = [item[0].info.key for item in batch]
        self.client.mutate_priorities("rows", dict(zip(keys, priorities.tolist(), strict=True)))


BUFFERS: dict[str, Any] = {
    "numpy": NumpyBuffer,
    "flowrl": FlowrlBuffer,
    "cpprb": CpprbBuffer,
    "sb3": Sb3Buffer,
    "tianshou": TianshouBuffer,
    "tianshou-single": TianshouSingleBuffer,
    "torchrl": TorchrlBuffer,
    "ding": DingBuffer,
    "reverb": ReverbBuffer,
}


def row_rate(call: Callable[[], Any], rows: int) -> float:
    """The rows per second of a call that handles `rows` rows, as the median of the repeats."""
    rates = []
    for _ in range(REPEATS):
        calls, start_s = 0, time.perf_counter()
        while time.perf_counter() - start_s < MEASURE_S or calls < 3:
            call()
            calls += 1
        rates.append(calls * rows / (time.perf_counter() - start_s))
    return sorted(rates)[REPEATS // 2]


def measure(name: str, obs_kind: str, prioritised: bool, rows: int) -> dict[str, float]:
    """Fill a buffer as far as `FILL_S` allows; then measure push, sample, and sample with update."""
    buffer = BUFFERS[name](obs_kind, prioritised, rows)
    convert = getattr(buffer, "convert", lambda chunk: chunk)
    chunks = itertools.cycle([convert(chunk) for chunk in make_chunks(obs_kind, 8)])

    def push() -> None:
        buffer.push(next(chunks))

    filled, start_s = 0, time.perf_counter()
    while filled < rows and time.perf_counter() - start_s < FILL_S:
        push()
        filled += PUSH_ROWS
    rates = {"filled": min(filled, rows), "push": row_rate(push, PUSH_ROWS)}
    rates["sample"] = row_rate(buffer.sample, BATCH_ROWS)
    if prioritised:
        priorities = itertools.cycle(np.random.default_rng(0).random((8, BATCH_ROWS)))
        rates["update"] = row_rate(
            lambda: buffer.update(buffer.sample(), next(priorities)), BATCH_ROWS
        )
    return rates


def main(words: list[str]) -> None:
    """Measure one buffer, and print its rates as JSON."""
    name, obs_kind, sampling, rows = words
    try:
        import torch

        torch.set_num_threads(1)
    except ImportError:
        pass
    print(json.dumps(measure(name, obs_kind, sampling == "prioritised", int(rows))))


if __name__ == "__main__":
    main(sys.argv[1:])
