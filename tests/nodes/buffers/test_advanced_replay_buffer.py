"""The advanced replay buffer: priorities, weights, removal of rows, feedback, and refused parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.core.batch import Batch, Column
from flowrl.core.context import Context
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.core.records import MetricsRecord
from flowrl.core.state import Clock, Count
from flowrl.nodes.buffers.advanced_replay_buffer import AdvancedReplayBuffer
from flowrl.nodes.buffers.sampling.prioritised_ring import BOOKKEEPING

SCHEMA = {"obs": Column("float32", (2,)), "reward": Column("float32")}
PRIORITY = {"priority": Column("float32")}
both = pytest.mark.parametrize("kind", ["proportional", "rank"])
either = pytest.mark.parametrize("replace", [True, False])


def rows(*values: float) -> Batch:
    reward = np.array(values, np.float32)
    return Batch({"obs": np.stack([reward / 2, reward], 1), "reward": reward})


def buffer(inputs: tuple[str, ...] = (), **params: Any) -> AdvancedReplayBuffer:
    known = {"data": SCHEMA, "demos": SCHEMA, "priorities": PRIORITY}
    context = Context("buffer", inputs={name: known[name] for name in ("data", *inputs)})
    config = AdvancedReplayBuffer.Config(**params)
    return AdvancedReplayBuffer(config=config, context=context)


def priority_tokens(*batches: list[float]) -> list[Batch]:
    return [Batch({"priority": np.array(batch, np.float32)}) for batch in batches]


def set_clock(node: AdvancedReplayBuffer, train_iters: int, env_steps: int = 0) -> None:
    node.ctx.clock = Clock({"learner": Count(env_steps, 0, train_iters)})


# priorities


@both
@either
def test_all_columns_of_a_batch_come_from_the_same_rows(kind: str, replace: bool) -> None:
    node = buffer(size=50, batch_size=16, priority=kind, replace=replace, bookkeeping=True)
    node.push(rows(*range(70)))
    batch = node.sample()
    assert np.array_equal(batch["obs"], np.stack([batch["reward"] / 2, batch["reward"]], 1))
    assert batch["reward"].tolist() == batch["row_id"].tolist()  # row k holds the value k
    assert batch["row_id"].min() >= 20
    assert replace or len(set(batch["row_id"])) == 16


def test_proportional_weights_follow_the_formula() -> None:
    """(N P(i))^-beta / max, with P(i) = p^alpha / sum p^alpha, for three rows."""
    node = buffer(batch_size=30, alpha=0.5, beta=0.4, priority_least=1e-9, bookkeeping=True)
    node.push(rows(0, 1, 2))
    node.update(np.array([1.0, 4.0, 16.0]), np.arange(3))
    batch = node.sample(3)
    chance = np.array([1.0, 2.0, 4.0]) / 7.0
    weight = (3 * chance) ** -0.4
    drawn = batch["row_id"]
    expected = weight[drawn] / weight[drawn].max()
    assert batch["weight"] == pytest.approx(expected, rel=1e-6)
    assert batch["weight"].dtype == np.float32


def test_rank_based_weights_follow_the_formula() -> None:
    node = buffer(batch_size=4, priority="rank", alpha=0.7, beta=0.5, bookkeeping=True)
    node.push(rows(0, 1, 2, 3))
    node.update(np.array([5.0, 20.0, 0.0, 10.0]), np.arange(4))
    batch = node.sample()
    chance = np.array([3, 1, 4, 2]) ** -0.7
    weight = (4 * chance / chance.sum()) ** -0.5
    drawn = batch["row_id"]
    assert batch["weight"] == pytest.approx(weight[drawn] / weight[drawn].max(), rel=1e-6)


def test_beta_increases_to_1_with_train_iterations() -> None:
    node = buffer(batch_size=2, replace=False, alpha=1.0, beta=0.5, beta_iters=100)
    node.push(rows(0, 1))
    node.update(np.array([1.0, 4.0]), np.arange(2))
    for train_iters, beta in ((0, 0.5), (50, 0.75), (100, 1.0), (10**6, 1.0)):
        set_clock(node, train_iters)
        assert node.sample()["weight"].min() == pytest.approx(4.0**-beta, rel=1e-4)


@both
def test_new_rows_get_the_highest_priority_so_far(kind: str) -> None:
    node = buffer(batch_size=3, replace=False, priority=kind, bookkeeping=True)
    node.push(rows(0))
    node.update(np.array([7.0]), np.array([0]))
    node.update(np.array([3.0]), np.array([0]))
    node.push(rows(1, 2))
    batch = node.sample()
    priority = dict(zip(batch["row_id"].tolist(), batch["priority"].tolist(), strict=True))
    assert priority == pytest.approx({0: 3.0, 1: 7.0, 2: 7.0}, abs=1e-4)


def test_a_priority_of_zero_can_still_be_drawn() -> None:
    node = buffer(batch_size=2, replace=False)
    node.push(rows(0, 1))
    node.update(np.zeros(2), np.arange(2))
    assert node.count == 2
    assert sorted(node.sample()["reward"]) == [0, 1]


def test_overwritten_rows_lose_their_priority_with_their_place() -> None:
    node = buffer(size=4, batch_size=4, replace=False, bookkeeping=True)
    node.push(rows(0, 1, 2, 3))
    node.update(np.array([100.0, 0, 0, 0]), np.arange(4))
    node.push(rows(4))
    node.update(np.array([0.5]), np.array([4]))
    batch = node.sample()
    assert sorted(batch["row_id"]) == [1, 2, 3, 4]
    assert batch["priority"].max() == pytest.approx(0.5, abs=1e-4)


# the feedback edge


def assert_batches_await_priorities(node: AdvancedReplayBuffer, count: int) -> None:
    for _ in range(count):
        node.update(np.ones(2))
    with pytest.raises(ValueError, match="priorities arrived, but no batch awaits any"):
        node.update(np.ones(2))


def test_priorities_belong_to_the_batches_of_the_previous_round_in_order() -> None:
    node = buffer(("priorities",), batch_size=3, updates_per_push=2, bookkeeping=True)
    first = node.fire(rows(0, 1, 2, 3), None, priority_tokens([], []))
    node.fire(rows(4), None, priority_tokens([1, 2, 3], [4, 5, 6]))
    known = node.ring.metadata["priority"]
    sent: dict[int, float] = {}
    for batch, priorities in zip(first, ([1, 2, 3], [4, 5, 6]), strict=True):
        sent |= dict(zip(batch["row_id"].tolist(), priorities, strict=True))
    for row, priority in sent.items():
        assert known[row] == pytest.approx(priority, abs=1e-4)
    # The highest priority, because updates come before the push.
    assert known[4] == pytest.approx(6, abs=1e-4)


def test_a_warm_up_without_batches_expects_no_priorities() -> None:
    node = buffer(("priorities",), batch_size=2)
    node.ctx.consumed_outputs = frozenset()
    assert node.fire(rows(0, 1), None, None) == []
    node.ctx.consumed_outputs = None
    node.fire(rows(2), None, priority_tokens([]))
    node.fire(rows(3), None, priority_tokens([1, 1]))
    assert_batches_await_priorities(node, 1)


def test_without_a_priorities_edge_only_the_newest_draw_awaits_priorities() -> None:
    node = buffer(batch_size=2)
    node.push(rows(0, 1))
    for _ in range(5):
        node.sample()
    assert_batches_await_priorities(node, 1)


def test_late_priorities_are_counted_and_ignored() -> None:
    node = buffer(size=4, batch_size=4, log_every_pushes=2)
    node.push(rows(0, 1, 2, 3))
    node.push(rows(4, 5))
    before = node.ring.sampler.tree.weights.copy()
    node.update(np.array([9.0, 9.0]), np.array([0, 1]))
    assert np.array_equal(node.ring.sampler.tree.weights, before)
    assert node.counters.late == 2
    node.clear()
    node.update(np.array([9.0]), np.array([5]))
    assert node.counters.late == 3


@pytest.mark.parametrize(
    ("priorities", "message"),
    [
        ([1.0, np.nan], "the priority of row 1 is nan; priorities must be finite and not negative"),
        ([-0.5, 1.0], "the priority of row 0 is -0.5"),
        ([np.inf, 1.0], "the priority of row 0 is inf"),
        ([1.0], r"the priorities have the shape \(1,\), the batch has 2 rows"),
    ],
)
def test_invalid_priorities_are_refused(priorities: list[float], message: str) -> None:
    node = buffer(batch_size=2)
    node.push(rows(0, 1))
    node.sample()
    before = node.ring.sampler.tree.weights.copy()
    with pytest.raises(ValueError, match="buffer: " + message):
        node.update(np.array(priorities))
    assert np.array_equal(node.ring.sampler.tree.weights, before)


def test_priorities_of_unknown_rows_are_refused() -> None:
    node = buffer()
    node.push(rows(0, 1))
    with pytest.raises(ValueError, match="row 2 does not exist; rows 0 to 1 were written"):
        node.update(np.ones(2), np.array([1, 2]))
    with pytest.raises(ValueError, match="priorities arrived, but no batch awaits any"):
        node.update(np.ones(2))


# removal of rows


@both
def test_a_row_is_removed_after_max_use_draws(kind: str) -> None:
    node = buffer(batch_size=4, max_use=3, replace=False, priority=kind)
    node.push(rows(*range(8)))
    drawn: list[int] = []
    while node.count >= 4:
        drawn += node.sample()["reward"].astype(int).tolist()
    counts = np.bincount(drawn, minlength=8)
    assert counts.max() == 3
    assert node.count == (counts < 3).sum()
    with pytest.raises(ValueError, match=rf"a batch takes 4 rows, but {node.count} are held"):
        node.sample()


@both
def test_a_row_is_removed_when_it_is_too_old(kind: str) -> None:
    node = buffer(batch_size=2, max_staleness_iters=10, replace=False, priority=kind)
    for train_iters, first in ((0, 0), (5, 2), (10, 4)):
        set_clock(node, train_iters)
        node.push(rows(first, first + 1))
    set_clock(node, 15)
    assert {*node.sample()["reward"], *node.sample()["reward"]} <= {2, 3, 4, 5}
    assert node.count == 4
    set_clock(node, 16)
    assert sorted(node.sample()["reward"]) == [4, 5]
    assert (node.count, node.ring.removed) == (2, 4)


def collected_by(versions: list[int], *values: float) -> Batch:
    return rows(*values).replace(**{"origin/weights": np.array(versions, np.int64)})


@both
def test_the_age_of_a_row_counts_from_the_weights_that_collected_it(kind: str) -> None:
    """Collectors may have different weights, and some rows, for instance random ones, have none."""
    node = buffer(
        batch_size=1, max_staleness_iters=10, replace=False, priority=kind, bookkeeping=True, size=8
    )
    set_clock(node, 12)
    node.push(collected_by([12, 2, -1, 9], 0, 1, 2, 3))
    batch = node.sample(4)
    ages = dict(zip(batch["reward"].tolist(), batch["age_iters"].tolist(), strict=True))
    assert ages == {0: 0, 1: 10, 2: 0, 3: 3}
    set_clock(node, 20)
    assert sorted(node.sample(2)["reward"]) == [0, 2]
    assert (node.count, node.ring.removed) == (2, 2)
    node.push(collected_by([20, 5, 20, 20, 20, 20, 20, 20], *range(4, 12)))  # replaces all rows
    assert sorted(node.sample(7)["reward"]) == [4, 6, 7, 8, 9, 10, 11]


def test_the_versions_of_two_learners_are_not_mixed_up() -> None:
    node = buffer(batch_size=1, bookkeeping=True)
    node.ctx.clock = Clock({"one": Count(train_iters=5), "two": Count(train_iters=7)})
    node.push(collected_by([3], 0))
    assert node.sample()["age_iters"].tolist() == [0]


def test_a_limit_of_staleness_needs_rows_that_say_their_weights() -> None:
    config = AdvancedReplayBuffer.Config(max_staleness_iters=10)
    with pytest.raises(UnsoundError, match="write `origin: true` at the collector"):
        AdvancedReplayBuffer.describe(config, Surroundings({"data": SCHEMA}, {}, frozenset()))


def test_the_place_of_a_removed_row_is_reused() -> None:
    node = buffer(size=4, batch_size=4, max_use=1, replace=False)
    node.push(rows(0, 1, 2, 3))
    node.sample()
    assert node.count == 0
    node.push(rows(4, 5))
    assert node.count == 2
    assert sorted(node.sample(2)["reward"]) == [4, 5]


def test_a_priority_does_not_restore_a_removed_row() -> None:
    node = buffer(batch_size=2, max_use=1, replace=False)
    node.push(rows(0, 1, 2, 3))
    node.sample()
    node.update(np.array([5.0, 5.0]))
    assert (node.count, node.counters.late) == (2, 2)


# demonstrations, bookkeeping, metrics


def test_demonstrations_are_the_last_rows_and_their_numbers_are_negative() -> None:
    node = buffer(("demos", "priorities"), batch_size=8, demo_share=0.25, bookkeeping=True)
    (batch,) = node.fire(rows(*range(10)), rows(-1, -2), priority_tokens([]))
    assert batch["is_demo"].tolist() == [False] * 6 + [True] * 2
    assert batch["weight"][6:].tolist() == [1.0, 1.0]
    assert batch["row_id"][6:].tolist() == batch["reward"][6:].tolist()
    assert set(batch["reward"][6:]) <= {-1, -2}
    node.fire(rows(10), rows(), priority_tokens([3.0] * 8))
    assert node.counters.late == 0


def test_bookkeeping_columns_describe_each_row() -> None:
    node = buffer(batch_size=2, bookkeeping=True, replace=False)
    set_clock(node, 4, env_steps=100)
    node.push(rows(0))
    set_clock(node, 9, env_steps=130)
    node.push(rows(1))
    node.sample()
    batch = node.sample()
    order = np.argsort(batch["row_id"])
    assert set(BOOKKEEPING) <= set(batch)
    assert batch["age_iters"][order].tolist() == [5, 0]
    assert batch["pushed_steps"][order].tolist() == [100, 130]
    assert batch["use"].tolist() == [1, 1]
    assert {name: batch.schema[name] for name in BOOKKEEPING} == dict(BOOKKEEPING)


def test_metrics_count_pushed_sampled_and_removed_rows() -> None:
    node = buffer(size=4, batch_size=2, replace=False, max_use=2, log_every_pushes=3)
    for k in range(3):
        set_clock(node, k)
        node.fire(rows(2 * k, 2 * k + 1), None, None)
    (metrics,) = [r for r in node.ctx.records if isinstance(r, MetricsRecord)]
    values = metrics.values
    assert values["pushed_rows"] == values["sampled_rows"] == 6
    assert values["held_rows"] == node.count
    assert values["removed_rows"] == 6 - node.count
    assert {"expired_rows", "late_rows"} <= set(values)
    for what in ("use", "priority", "age_iters"):
        assert values[f"{what}_min"] <= values[f"{what}_mean"] <= values[f"{what}_max"]
    assert values["use_max"] <= 2


# saved states


@both
@either
def test_a_loaded_buffer_draws_the_same_batches(kind: str, replace: bool) -> None:
    params: dict[str, Any] = {"size": 30, "batch_size": 8, "updates_per_push": 2}
    params |= {"priority": kind, "replace": replace, "bookkeeping": True}
    node, copy = buffer(("priorities",), **params), buffer(("priorities",), **params)
    rng = np.random.default_rng(0)
    node.fire(rows(*range(40)), None, priority_tokens([], []))
    node.fire(rows(41), None, priority_tokens(*rng.random((2, 8)).tolist()))
    copy.load_state_dict(node.state_dict())
    for k in range(3):
        feedback = priority_tokens(*rng.random((2, 8)).tolist())
        pairs = [one.fire(rows(50 + k), None, feedback) for one in (node, copy)]
        for a, b in zip(*pairs, strict=True):
            assert all(np.array_equal(a[name], b[name]) for name in a)
    assert copy.metrics() == node.metrics()


def test_an_empty_buffer_can_be_saved_and_loaded() -> None:
    node, copy = buffer(), buffer()
    copy.push(rows(1))
    copy.load_state_dict(node.state_dict())
    assert copy.count == 0


def test_a_state_of_another_size_is_refused() -> None:
    node = buffer(size=80)
    node.push(rows(1))
    with pytest.raises(
        ValueError, match="the state is of a buffer of size 80; this buffer's size is 90"
    ):
        buffer(size=90).load_state_dict(node.state_dict())


def test_compiled_kernels_give_the_same_batches_as_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    from flowrl.nodes.buffers.sampling import sum_tree

    found = []
    for compiled_from in (1, 10**9):
        monkeypatch.setattr(sum_tree, "COMPILED_FROM", compiled_from)
        node = buffer(("priorities",), size=50, batch_size=16, bookkeeping=True)
        rng, feedback, drawn = np.random.default_rng(0), priority_tokens([]), []
        for k in range(20):
            (batch,) = node.fire(rows(*range(5 * k, 5 * k + 20)), None, feedback)
            feedback = priority_tokens(rng.random(16).tolist())
            drawn += [batch["row_id"].tobytes(), batch["weight"].tobytes()]
        found.append(drawn)
    assert found[0] == found[1]


# describe


def describe(known: dict[str, Any], **params: Any) -> Any:
    config = AdvancedReplayBuffer.Config(**params)
    return AdvancedReplayBuffer.describe(config, Surroundings(known, {}, frozenset()))


def test_describe_states_the_columns_memory_and_needs() -> None:
    facts = describe({"data": SCHEMA}, size=100, batch_size=16)
    assert facts.outs == {"batches": {**SCHEMA, "weight": Column("float32")}}
    assert facts.needs == {}
    assert facts.memory_bytes == 100 * (12 + 20 + 10)
    more = describe({"data": SCHEMA, "demos": SCHEMA, "priorities": PRIORITY}, bookkeeping=True)
    assert more.needs == {"demos": SCHEMA, "priorities": PRIORITY}
    assert set(more.outs["batches"]) == {*SCHEMA, "weight", "is_demo", *BOOKKEEPING}


def test_max_use_requires_replace_false() -> None:
    with pytest.raises(
        UnsoundError, match="no batch may contain a row twice; write `replace: false`"
    ):
        describe({"data": SCHEMA}, max_use=2)


def test_a_draw_fails_if_too_many_rows_have_expired() -> None:
    node = buffer(size=8, batch_size=4, replace=False, max_use=1)
    node.push(rows(*range(6)))
    node.sample()
    message = r"takes 4 rows, but 2 are held; 4 have expired: increase `max_use`"
    with pytest.raises(ValueError, match=message):
        node.sample()


def test_a_run_writes_the_metrics_that_the_docs_list(tmp_path: Path) -> None:
    graph = flowrl.load("cartpole_dqn_per", {"buffer.log_every_pushes": 1})
    graph.run(train_iters=40, out=tmp_path / "run")
    lines = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    metrics = [line for line in lines if line["node"] == "buffer"][-1]
    for name in ("held", "pushed", "sampled", "removed", "expired", "late"):
        assert metrics[f"{name}_rows"] >= 0
    assert metrics["held_rows"] == metrics["pushed_rows"] - metrics["removed_rows"]
    for name in ("use", "priority", "age_iters"):
        assert metrics[f"{name}_min"] <= metrics[f"{name}_mean"] <= metrics[f"{name}_max"]
    assert metrics["age_iters_max"] > 0


@pytest.mark.parametrize(
    ("params", "what"),
    [
        ({"updates_per_push": 8, "batch_size": 4}, "4 rows are drawn for each row that arrives"),
        ({"samples_per_insert": 3.5}, "3.5 rows are drawn .*or lower `samples_per_insert`"),
    ],
)
def test_more_draws_of_each_row_than_it_may_be_used_for_are_refused(
    params: dict[str, Any], what: str
) -> None:
    def facts(max_use: int) -> Facts:
        config = AdvancedReplayBuffer.Config(max_use=max_use, replace=False, policy=None, **params)
        inputs = {"data": SCHEMA, "priorities": PRIORITY}
        known = Surroundings(inputs, {}, frozenset({"batches"}), rows={"data": 8})
        return AdvancedReplayBuffer.describe(config, known)

    with pytest.raises(UnsoundError, match=what):
        facts(3)
    assert facts(4).rows == {"batches": params.get("batch_size", 64)}
