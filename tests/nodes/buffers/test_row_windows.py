"""n-step rewards: every kind of buffer compared with a slow, plain definition of the windows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrl
from flowrl.core.batch import Batch, Column
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.nodes.buffers.advanced_replay_buffer import AdvancedReplayBuffer
from flowrl.nodes.buffers.episode_replay_buffer import EpisodeReplayBuffer
from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
from flowrl.nodes.buffers.queue_buffer import QueueBuffer
from flowrl.nodes.buffers.storage.compressed import CompressedStorage
from flowrl.nodes.buffers.storage.mapped import MappedStorage
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.nstep import NstepRule, with_summed_rewards
from flowrl.nodes.origin import COLLECTOR_COLUMN, ENV_COLUMN, LINK_COLUMNS, STEP_COLUMN
from flowrl.nodes.policy import LearnResult
from tests.nodes.toy_policies import Toy

GAMMA = 0.9


def policy(nstep: int, gamma: float = GAMMA) -> Toy:
    return Toy(obs=Column("float32", (3,)), action=Column("int64"), nstep=nstep, gamma=gamma)


class Row(NamedTuple):
    """One row; `number` is its `obs`, and `number + 0.5` its `next_obs`, unless the episode goes on."""

    env: tuple[int, int]
    step: int
    number: int
    reward: float
    next_obs: float
    terminated: bool
    truncated: bool
    last: bool

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


def random_tokens(seed: int, envs: int, tokens: int, loss: float = 0.0) -> list[list[Row]]:
    """Tokens with some steps of each env of two collectors, of which some tokens are lost."""
    rng = np.random.default_rng(seed)
    steps = {(c, e): 0 for c in (7, 9) for e in range(envs)}
    number, found = 0, []
    for _ in range(tokens):
        token = []
        for env in steps:
            count = int(rng.integers(5))
            for k in range(count):
                done = rng.random() < 0.2
                terminated = bool(done and rng.random() < 0.5)
                reached = number + 0.5 if done or k + 1 == count else number + 1.0
                flags = (terminated, bool(done and not terminated), bool(done or k + 1 == count))
                row = Row(env, steps[env], number, float(rng.normal()), reached, *flags)
                token.append(row)
                number += 1
                steps[env] += 1
        if token and rng.random() >= loss:
            found.append(token)
    return found


def to_batch(rows: Sequence[Row], links: bool = True) -> Batch:
    columns = {
        "obs": np.array([[r.number] * 3 for r in rows], np.float32).reshape(-1, 3),
        "action": np.array([r.number for r in rows], np.int64),
        "reward": np.array([r.reward for r in rows], np.float32),
        "next_obs": np.array([[r.next_obs] * 3 for r in rows], np.float32).reshape(-1, 3),
        **{n: np.array([getattr(r, n) for r in rows], bool) for n in ("terminated", "truncated", "last")},
        "discount": np.array([GAMMA * (not r.terminated) for r in rows], np.float32),
    }  # fmt: skip
    if links:
        columns[COLLECTOR_COLUMN] = np.array([r.env[0] for r in rows], np.int32)
        columns[ENV_COLUMN] = np.array([r.env[1] for r in rows], np.int32)
        columns[STEP_COLUMN] = np.array([r.step for r in rows], np.int64)
    return Batch(columns)


def window(rows: Sequence[Row], k: int, n: int) -> list[Row] | None:
    """The window of row k among the rows that have arrived, by the definition; None if it is incomplete."""
    found = [rows[k]]
    while len(found) < n and not found[-1].done:
        at = rows.index(found[-1])
        later = [row for row in rows[at + 1 :] if row.env == found[-1].env]
        if not later:
            return None
        if later[0].step != found[-1].step + 1:
            break  # the next step will not come
        found.append(later[0])
    return found


def summed(window: Sequence[Row]) -> dict[str, Any]:
    total = np.float64(0)
    for j, row in enumerate(window):
        total += GAMMA**j * np.float64(np.float32(row.reward))
    end = window[-1]
    return {
        "reward": np.float32(total),
        "discount": np.float32(GAMMA ** len(window) * (not end.terminated)),
        "next_obs": [end.next_obs] * 3,
        "terminated": end.terminated,
        "truncated": end.truncated,
        "last": window[0].last,
    }


def assert_rows_are(found: Batch, expected: dict[int, dict[str, Any]]) -> None:
    """Assert that a table has exactly these rows by number, in any order."""
    assert sorted(found["action"].tolist()) == sorted(expected)
    assert not set(LINK_COLUMNS) & set(found)
    for k, number in enumerate(found["action"].tolist()):
        for name, value in expected[number].items():
            assert np.array_equal(found[name][k], value), (name, number)


def expected_rows(rows: list[Row], size: int, n: int) -> dict[int, dict[str, Any]]:
    held = range(max(0, len(rows) - size), len(rows))
    windows = {rows[k].number: window(rows, k, n) for k in held}
    return {number: summed(w) for number, w in windows.items() if w is not None}


KINDS: dict[str, Any] = {
    "naive": lambda **more: NaiveReplayBuffer(replace=False, **more),
    "store once": lambda **more: NaiveReplayBuffer(replace=False, store_once=True, **more),
    "compressed": lambda **more: NaiveReplayBuffer(
        replace=False, storage=CompressedStorage(codec="zlib", least_row_bytes=4), **more
    ),
    "proportional": lambda **more: AdvancedReplayBuffer(replace=False, **more),
    "rank": lambda **more: AdvancedReplayBuffer(replace=False, priority="rank", **more),
}


def all_rows(buffer: Any) -> Batch:
    return buffer.sample(buffer.count) if buffer.count else to_batch([], links=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 6), size=st.integers(1, 60), seed=st.integers(0, 2**31),
    envs=st.integers(1, 3), tokens=st.integers(1, 8), loss=st.sampled_from([0.0, 0.3]),
)  # fmt: skip
def test_complete_windows_are_drawn_and_have_the_values_of_the_definition(
    kind: str, n: int, size: int, seed: int, envs: int, tokens: int, loss: float
) -> None:
    buffer = KINDS[kind](size=size, policy=policy(n))
    arrived: list[Row] = []
    for token in random_tokens(seed, envs, tokens, loss):
        buffer.push(to_batch(token, links=n > 1))
        arrived += token
        expected = expected_rows(arrived, size, n)
        assert buffer.count == len(expected)
        assert_rows_are(all_rows(buffer), expected)
    if arrived:
        held = sorted(row.number for row in arrived[-size:])
        assert sorted(buffer.rows()["action"].tolist()) == held  # also those that wait
        assert buffer.metrics()["held_rows"] == len(held)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(0, 2**31), st.integers(1, 3))
def test_windows_of_whole_episodes_are_complete(n: int, seed: int, episodes: int) -> None:
    rng = np.random.default_rng(seed)
    buffer, rows = EpisodeReplayBuffer(size=500, replace=False, policy=policy(n)), []
    for _ in range(3):
        token: list[Row] = []
        for _ in range(episodes):
            lasts, first = int(rng.integers(1, 9)), len(rows) + len(token)
            for k in range(lasts):
                over, ends = k + 1 == lasts, bool(rng.random() < 0.5)
                token.append(Row((0, len(rows) + len(token) - k), k, first + k, float(rng.normal()), first + k + 1.0,
                                 over and ends, over and not ends, over))  # fmt: skip
        buffer.push(to_batch(token, links=False))
        rows += token
    batch = buffer.sample(buffer.count)
    assert_rows_are(batch, expected_rows(rows, 500, n))
    part = EpisodeReplayBuffer(size=500, replace=False, policy=policy(n), part_steps=2)
    part.load_state_dict(buffer.state_dict())
    drawn = part.sample(part.count)
    found = expected_rows(rows, 500, n)
    # Windows reach beyond the part of an episode that is drawn.
    shown = {number: {**found[number]} for number in drawn["action"].tolist()}
    for values in shown.values():
        del values["last"]  # also set where the part ends
    assert_rows_are(drawn, shown)


def in_one_token(token: list[Row], n: int) -> dict[int, dict[str, Any]]:
    """The windows of a token after which nothing arrives."""
    found = {}
    for k, row in enumerate(token):
        of_env = [r for r in token[k:] if r.env == row.env]
        rows = of_env[:1]
        for after in of_env[1:n]:
            if rows[-1].done or after.step != rows[-1].step + 1:
                break
            rows.append(after)
        found[row.number] = summed(rows)
    return found


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.integers(0, 2**31), st.integers(1, 3), st.booleans())
def test_windows_of_a_queue_end_with_the_token(n: int, seed: int, envs: int, links: bool) -> None:
    buffer = QueueBuffer(policy=policy(n))
    for token in random_tokens(seed, envs, 3):
        buffer.push(to_batch(token, links))
        batch = buffer.sample(len(token))
        assert batch["action"].tolist() == [row.number for row in token]
        expected = in_one_token(token, n)
        expected[token[-1].number]["last"] = True
        assert_rows_are(batch, expected)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.integers(0, 2**31), st.integers(1, 3))
def test_windows_of_demonstrations_end_with_their_table(n: int, seed: int, envs: int) -> None:
    tokens = random_tokens(seed, envs, 3)
    table = [row for token in tokens for row in token]
    whole = with_summed_rewards(to_batch(table), NstepRule(n, GAMMA))
    assert_rows_are(whole, in_one_token(table, n))
    buffer = NaiveReplayBuffer(policy=policy(n), replace=False, demo_share=0.5)
    buffer.push_demos(to_batch(table))
    agent = [row for token in random_tokens(seed + 1, 3, 30) for row in token]
    buffer.push(to_batch(agent))
    batch = buffer.sample(2 * len(table))
    demos = batch.take(np.flatnonzero(batch["is_demo"]))
    assert_rows_are(demos, in_one_token(table, n))


def test_a_row_that_waited_gets_the_highest_priority_when_it_can_be_drawn() -> None:
    rows = [Row((7, 0), k, k, 1.0, k + 1.0, False, False, k % 4 == 3) for k in range(12)]
    buffer = AdvancedReplayBuffer(size=100, policy=policy(3), bookkeeping=True)
    buffer.push(to_batch(rows[:4]))
    assert (buffer.count, buffer.ring.withheld.tolist()) == (2, [2, 3])
    buffer.update(np.array([5.0, 7.0]), np.array([0, 1]))
    buffer.push(to_batch(rows[4:8]))
    assert (buffer.count, buffer.ring.withheld.tolist()) == (6, [6, 7])
    highest = np.float32(7 + 1e-5)
    assert buffer.ring.metadata["priority"][:6].tolist() == pytest.approx(
        [5, 7, *[highest] * 4], abs=1e-4
    )
    drawn = [buffer.sample(6)["row_id"].tolist() for _ in range(20)]
    assert {number for batch in drawn for number in batch} == set(range(6))
    buffer.clear()
    assert (buffer.count, len(buffer.ring.withheld)) == (0, 0)


@pytest.mark.parametrize("kind", ["naive", "proportional"])
def test_a_loaded_buffer_goes_on_with_the_rows_that_wait(kind: str) -> None:
    buffer, copy = (KINDS[kind](size=40, policy=policy(4), seed=3) for _ in range(2))
    tokens = random_tokens(11, 3, 8)
    for token in tokens[:4]:
        buffer.push(to_batch(token))
    buffer.sample(4)
    copy.load_state_dict(buffer.state_dict())
    for token in tokens[4:]:
        for one in (buffer, copy):
            one.push(to_batch(token))
        a, b = buffer.sample(9), copy.sample(9)
        assert all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kind", [NaiveReplayBuffer, AdvancedReplayBuffer])
def test_windows_are_found_again_in_a_mapped_file_for_any_nstep(
    kind: type[Any], tmp_path: Path
) -> None:
    def opened(nstep: int, **more: Any) -> Any:
        storage = MappedStorage(path=str(tmp_path / "rows"), **more)
        return kind(size=60, replace=False, storage=storage, policy=policy(nstep))

    tokens, arrived = random_tokens(5, 2, 9), []
    buffer = opened(4)
    for token in tokens[:-1]:
        buffer.push(to_batch(token))
        arrived += token
    assert_rows_are(all_rows(buffer), expected_rows(arrived, 60, 4))
    buffer.close()
    again = opened(3, on_existing="reuse")
    assert_rows_are(all_rows(again), expected_rows(arrived, 60, 3))
    again.push(to_batch(tokens[-1]))
    assert_rows_are(all_rows(again), expected_rows(arrived + tokens[-1], 60, 3))
    again.close()


def test_rows_are_stored_with_one_reward() -> None:
    (token,) = random_tokens(2, 3, 1)
    buffer, again = (KINDS["naive"](size=100, policy=policy(n)) for n in (5, 2))
    buffer.push(to_batch(token))
    rows = buffer.rows()
    assert rows["reward"].tolist() == to_batch(token)["reward"].tolist()
    again.push(rows)
    assert_rows_are(all_rows(again), expected_rows(token, 100, 2))


def facts(kind: type[Any], schema: dict[str, Column], nstep: int, **params: Any) -> Any:
    config = kind.Config(policy=policy(nstep), **params)
    return kind.describe(config, Surroundings({"data": schema}, {}, frozenset()))


@pytest.mark.parametrize(
    "kind", [NaiveReplayBuffer, AdvancedReplayBuffer, EpisodeReplayBuffer, QueueBuffer]
)
def test_check_knows_which_node_sums_rewards(kind: type[Any]) -> None:
    (token,) = random_tokens(2, 3, 1)
    schema = dict(to_batch(token).schema)
    schema[ENV_COLUMN] = Column("int32", n=3)
    found = facts(kind, schema, 5)
    drawn = found.outs["batches"]
    assert drawn["reward"].sums == 5
    assert not set(LINK_COLUMNS) & set(drawn)
    assert found.needs_order == {"data"}
    if kind in (NaiveReplayBuffer, AdvancedReplayBuffer):
        assert found.needs_rows["data"] == (64 + 4 * 3, "batch_size")
    passed_on = facts(kind, drawn, 5)  # behind a buffer that has summed them
    assert passed_on.outs["batches"]["reward"].sums == 5
    assert facts(kind, schema, 1).outs["batches"]["reward"].sums is None
    with pytest.raises(
        UnsoundError,
        match="the rows sum 5 rewards each, but the policy learns from rows of 3; give",
    ):
        facts(kind, drawn, 3)
    del schema["truncated"]
    if kind is not EpisodeReplayBuffer:
        with pytest.raises(
            UnsoundError,
            match="the policy sums 5 rewards, for which rows need the column 'truncated'",
        ):
            facts(kind, schema, 5)


def test_a_free_running_buffer_waits_until_a_batch_can_be_drawn() -> None:
    (token,) = random_tokens(2, 3, 1)
    schema = {**to_batch(token).schema, ENV_COLUMN: Column("int32", n=8)}
    context = Context("buffer", inputs={"data": schema, "priorities": None})
    config = NaiveReplayBuffer.Config(policy=policy(10), samples_per_insert=2.0, first_rows=70)
    buffer = NaiveReplayBuffer(config=config, context=context)
    assert buffer.pacer.first_rows == 64 + 9 * 8


def test_a_learner_that_is_fed_without_a_buffer_sums_the_rewards_of_each_token() -> None:
    (token,) = random_tokens(2, 3, 1)
    schema, learned = dict(to_batch(token).schema), []
    config = Learner.Config(policy=policy(4))
    for summed_before in (1, 4):
        schema["reward"] = Column("float32", sums=summed_before)
        node = Learner(config=config, context=Context("learner", inputs={"data": schema}))
        node.mode.forward = lambda batch, command: learned.append(batch) or LearnResult()
        node.fire(to_batch(token))
        known = Surroundings({"data": schema}, {}, frozenset())
        assert Learner.describe(config, known).needs_order == (
            {"data"} if summed_before == 1 else set()
        )
    by_hand, of_buffer = learned
    assert_rows_are(by_hand, in_one_token(token, 4))
    assert np.array_equal(of_buffer["reward"], to_batch(token)["reward"])
    with pytest.raises(
        UnsoundError, match="the rows sum 4 rewards each, but the policy learns from rows of 1"
    ):
        Learner.describe(Learner.Config(policy=policy(1)), known)


def test_check_refuses_rewards_that_would_be_summed_over_rows_in_another_order() -> None:
    unsummed = {"extends": "cartpole_dqn", "nodes": {"buffer": {"policy": None}}}
    (problem,) = flowrl.load(unsummed).check().problems
    assert "learner.data needs rows in the order of time" in str(problem)
    direct = {
        "extends": "cartpole_dqn", "nodes": {"buffer": None}, "edges": ["collector -> learner"], "warmup": [],
    }  # fmt: skip
    assert flowrl.load(direct).check().problems == []
