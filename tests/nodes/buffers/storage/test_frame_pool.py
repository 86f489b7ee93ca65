"""Deduplicated observations keep their bits, whatever is pushed."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.core.batch import Batch, Column
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings
from flowrl.nodes.buffers.advanced_replay_buffer import AdvancedReplayBuffer
from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
from flowrl.nodes.buffers.storage.deduplication import FrameDeduplicator
from flowrl.nodes.buffers.storage.frame_pool import FramePool
from flowrl.nodes.buffers.storage.ring import Ring
from flowrl.nodes.buffers.storage.storage import MemoryStorage, RingLayout

SIDE = 4
OBS = Column("uint8", (4, SIDE, SIDE))


class Stream:
    """An env whose observations are stacked frames."""

    def __init__(self, rng: np.random.Generator, stacked: int, end: float, frame: Any) -> None:
        self.rng, self.stacked, self.end, self.frame = rng, stacked, end, frame
        self.begin()

    def begin(self) -> None:
        self.stack = [self.frame()] * self.stacked

    def rows(self, count: int) -> list[tuple[np.ndarray, np.ndarray, bool]]:
        found = []
        for _ in range(count):
            obs = np.stack(self.stack)
            self.stack = [*self.stack[1:], self.frame()]
            done = bool(self.rng.random() < self.end)
            found.append((obs, np.stack(self.stack), done))
            if done:
                self.begin()
        return found


def token(streams: list[Stream], counts: list[int], stacked: int) -> dict[str, np.ndarray]:
    """Make a token: rows sorted by env and time."""
    rows = [row for s, n in zip(streams, counts, strict=True) for row in s.rows(n)]
    shape = (stacked, SIDE, SIDE) if stacked > 1 else (SIDE, SIDE)
    obs = np.array([row[0] for row in rows], np.uint8).reshape(len(rows), *shape)
    next_obs = np.array([row[1] for row in rows], np.uint8).reshape(len(rows), *shape)
    done = np.array([row[2] for row in rows], bool)
    return {"obs": obs, "next_obs": next_obs, "done": done, "row": np.zeros(len(rows), np.int64)}


def make_pool(places: int) -> FramePool:
    """Make a pool for observations of four stacked frames."""
    frame = Column("uint8", (SIDE * SIDE,))
    pool = MemoryStorage().allocate({"pool": (frame, places)}, RingLayout({}, places, None))["pool"]
    return FramePool(4, OBS, pool, partial(MemoryStorage().grow, "pool"))


def encode(frames: FramePool, obs: np.ndarray, after: np.ndarray, first: int) -> Any:
    encoded = frames.encode(obs, after, first, first + len(obs))
    frames.write(encoded)
    return encoded.obs_places, encoded.next_obs_places


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return all(a[k].tobytes() == b[k].tobytes() and a[k].dtype == b[k].dtype for k in b)


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(3, 60),
    stacked=st.integers(1, 4),
    envs=st.integers(1, 4),
    end=st.sampled_from([0.0, 0.05, 0.5]),
    shades=st.sampled_from([2, 250]),  # with 2, frames are equal by chance
    amounts=st.lists(st.integers(0, 12), min_size=1, max_size=12),
    seed=st.integers(0, 99),
)
def test_every_held_row_is_read_as_it_was_written(
    size: int, stacked: int, envs: int, end: float, shades: int, amounts: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)

    def frame() -> np.ndarray:
        if shades == 2:
            return np.full((SIDE, SIDE), rng.integers(2), np.uint8)
        return rng.integers(0, 255, (SIDE, SIDE), np.uint8)

    streams = [Stream(rng, stacked, end, frame) for _ in range(envs)]
    names = {"obs": stacked}
    ring, plain = Ring(size, deduplicator=FrameDeduplicator(names)), Ring(size)
    for k, amount in enumerate(amounts):
        rows = token(streams, [amount + e % 2 for e in range(envs)], stacked)
        ring.push(rows)
        plain.push({name: array[-size:] for name, array in rows.items()})
        places = np.arange(ring.row_count)
        assert ring.row_count == plain.row_count
        assert same(ring.take(places), plain.take(places))
        if k % 4 == 3:  # continue with a saved and loaded ring
            copy = Ring(size, deduplicator=FrameDeduplicator(names))
            copy.load_state_dict(ring.state_dict())
            ring = copy
        if k % 7 == 6:
            ring.clear()
            plain.clear()


def test_consecutive_rows_take_one_frame_each_also_across_tokens() -> None:
    rng = np.random.default_rng(0)
    frames = make_pool(1000)
    streams = [
        Stream(rng, 4, 0.0, lambda: rng.integers(0, 255, (SIDE, SIDE), np.uint8)) for _ in range(3)
    ]
    first = 0
    for _ in range(20):
        rows = token(streams, [5, 5, 5], 4)
        encode(frames, rows["obs"], rows["next_obs"], first)
        first += 15
    # Rows, and additional first and last frames of each env.
    assert frames.written == 300 + 3 + 3 - 3


def test_the_end_of_an_episode_takes_two_more_frames() -> None:
    rng = np.random.default_rng(0)
    frames = make_pool(100)
    stream = Stream(rng, 4, 1.0, lambda: rng.integers(0, 255, (SIDE, SIDE), np.uint8))
    rows = token([stream], [10], 4)  # each row is an episode
    encode(frames, rows["obs"], rows["next_obs"], 0)
    assert frames.written == 20


def test_n_step_rows_share_frames() -> None:
    rng = np.random.default_rng(0)
    stream = Stream(rng, 4, 0.0, lambda: rng.integers(0, 255, (SIDE, SIDE), np.uint8))
    rows = token([stream], [40], 4)
    ahead = {"obs": rows["obs"][:30], "next_obs": rows["next_obs"][2:32]}
    frames = make_pool(100)
    now, later = encode(frames, ahead["obs"], ahead["next_obs"], 0)
    assert np.array_equal(frames.decode(now), ahead["obs"])
    assert np.array_equal(frames.decode(later), ahead["next_obs"])
    assert frames.written <= 30 + 3 * 4 + 1


def test_signed_zeros_and_nans_keep_their_bits() -> None:
    ring = Ring(10, deduplicator=FrameDeduplicator({}))
    obs = np.array([[0.0], [-0.0], [np.nan], [-0.0]])
    ring.push({"obs": obs, "next_obs": np.abs(obs)})
    found = ring.take(np.arange(4))
    assert found["obs"].tobytes() == obs.tobytes()
    assert found["next_obs"].tobytes() == np.abs(obs).tobytes()


def test_an_atari_transition_takes_less_than_7_5_kilobytes() -> None:
    rng = np.random.default_rng(0)
    ring = Ring(512, metadata={"train_iters": "int32"}, deduplicator=FrameDeduplicator({"obs": 4}))
    stack = rng.integers(0, 255, (4, 84, 84), np.uint8)
    pushed = 0
    for _ in range(5):
        obs, after = [], []
        for _ in range(128):
            obs.append(stack)
            stack = np.concatenate([stack[1:], rng.integers(0, 255, (1, 84, 84), np.uint8)])
            after.append(stack)
            pushed += 1
        small = {name: np.zeros(128, np.float32) for name in ("reward", "discount")}
        flags = {name: np.zeros(128, bool) for name in ("terminated", "truncated", "last")}
        action = {"action": np.zeros(128, np.int64)}
        ring.push({"obs": np.array(obs), "next_obs": np.array(after), **action, **small, **flags})
    assert ring.row_count == 512
    assert ring.nbytes / 512 < 7500


def test_observations_without_the_declared_frames_are_refused() -> None:
    ring = Ring(10, deduplicator=FrameDeduplicator({"obs": 4}))
    rows = {name: np.zeros((2, 3, 8), np.uint8) for name in ("obs", "next_obs")}
    with pytest.raises(ValueError, match="both must have the same type, with 4 frames on axis 0"):
        ring.push(rows)


def test_a_state_with_other_deduplication_is_refused() -> None:
    with pytest.raises(ValueError, match="differ in whether frames are deduplicated"):
        Ring(10).load_state_dict(Ring(10, deduplicator=FrameDeduplicator({})).state_dict())


# with buffers

STACKED = {
    name: Column("uint8", (4, SIDE, SIDE), frames=4) if "obs" in name else Column("int64")
    for name in ("obs", "next_obs", "row")
}


@pytest.mark.parametrize("kind", [NaiveReplayBuffer, AdvancedReplayBuffer])
@pytest.mark.parametrize("by_hand", [True, False])
def test_batches_do_not_depend_on_deduplication(kind: Any, by_hand: bool) -> None:
    deduplicated = {"store_once": True, "frames": 4} if by_hand else {}
    plain = kind(size=40, batch_size=16, store_once=False)
    context = Context("n", inputs={} if by_hand else {"data": STACKED})
    compact = kind(config=kind.Config(size=40, batch_size=16, **deduplicated), context=context)
    plain.ctx.name = "n"
    plain.setup()
    rng = np.random.default_rng(0)
    streams = [
        Stream(rng, 4, 0.1, lambda: rng.integers(0, 255, (SIDE, SIDE), np.uint8)) for _ in range(2)
    ]
    for _ in range(6):
        rows = token(streams, [9, 9], 4)
        plain.push(Batch(dict(rows)))
        compact.push(Batch(dict(rows)))
        a, b = plain.sample(), compact.sample()
        assert same(dict(a.columns), dict(b.columns))


def test_stacked_frames_are_stored_once_unless_disabled() -> None:
    def row_bytes(**params: Any) -> int:
        config = NaiveReplayBuffer.Config(size=1000, **params)
        known = Surroundings({"data": STACKED}, {}, frozenset())
        return NaiveReplayBuffer.describe(config, known).memory_bytes // 1000

    assert row_bytes() == row_bytes(store_once=True) == 16 + 1 + 2 * 4 * 8 + 8 + 4
    assert row_bytes(store_once=False) == 2 * 64 + 8 + 4
