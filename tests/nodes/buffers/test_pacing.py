"""A free-running buffer keeps its ratio within the band by waiting, and drops nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
from flowrl.nodes.buffers.sequence_replay_buffer import SequenceReplayBuffer

BAND: dict[str, Any] = {
    "samples_per_insert": 4.0,
    "band_rows": 16,
    "first_rows": 10,
    "batch_size": 8,
    "updates_per_push": 16,
}


def rows(count: int) -> Batch:
    return Batch({"reward": np.arange(count, dtype=np.float32)})


def buffer(**params: Any) -> AdvancedReplayBuffer:
    context = Context("buffer", inputs={"data": {}, "priorities": {}})
    config = AdvancedReplayBuffer.Config(**{**BAND, **params})
    return AdvancedReplayBuffer(config=config, context=context)


def learned_batch(count: int) -> Batch:
    return Batch({"priority": np.ones(count, np.float32)})


def test_no_batch_is_emitted_before_the_first_rows_or_without_a_request() -> None:
    node = buffer(ahead_batches=2)
    assert node.fire(rows(9), None, None) == []
    assert node.fire(None, None, learned_batch(0)) == []
    assert len(node.fire(rows(2), None, None)) == 2  # requested, and within the band
    assert node.fire(None, None, None) == []
    # 4 rows are due for the eleventh row, and 16 may be ahead.
    assert len(node.fire(None, None, learned_batch(8))) == 0


def test_requested_batches_are_emitted_once_rows_have_arrived() -> None:
    node = buffer(ahead_batches=1)
    node.fire(rows(10), None, learned_batch(0))
    assert len(node.fire(None, None, learned_batch(8))) == 1
    assert node.fire(None, None, learned_batch(8)) == []
    assert len(node.fire(rows(4), None, None)) == 1


def test_below_the_band_batches_are_emitted_without_a_request() -> None:
    node = buffer(updates_per_push=30)
    assert len(node.fire(rows(60), None, None)) == 23  # 200 rows are due, and 16 may be behind
    assert node.pacer.requested == -23
    assert len(node.fire(rows(3), None, None)) == 1


def test_a_token_that_requires_more_batches_than_a_firing_emits_is_refused() -> None:
    message = "for which 28 rows must be drawn, but a firing emits at most 3 batches of 8; write `updates_per_push: 4`"
    with pytest.raises(ValueError, match=message):
        buffer(updates_per_push=3).fire(rows(7), None, None)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 3), min_size=30, max_size=80), st.floats(0.3, 6.0))
def test_the_ratio_stays_within_the_band_at_any_relative_speed(
    events: list[int], ratio: float
) -> None:
    """In random order, the learner finishes a batch or the collector emits three rows."""
    node = buffer(samples_per_insert=ratio, updates_per_push=64)
    queue = len(node.fire(None, None, learned_batch(0)))
    for event in events:
        if event == 0 and queue:
            queue += len(node.fire(None, None, learned_batch(8))) - 1
        else:
            queue += len(node.fire(rows(3), None, None))
        if node.counters.pushed >= 10:
            due = (node.counters.pushed - 10) * ratio
            assert due - 16 - 8 < node.counters.sampled <= due + 16


def test_a_loaded_buffer_continues_with_the_requested_batches() -> None:
    node, copy = buffer(ahead_batches=3), buffer(ahead_batches=3)
    node.fire(rows(9), None, learned_batch(0))
    copy.load_state_dict(node.state_dict())
    assert len(copy.fire(rows(1), None, None)) == len(node.fire(rows(1), None, None)) == 2


KINDS = [NaiveReplayBuffer, AdvancedReplayBuffer, SequenceReplayBuffer, EpisodeReplayBuffer]


def step_rows(count: int) -> Batch:
    """Make rows that are episodes of one step, so there are as many sequences and episodes as rows."""
    flags = dict.fromkeys(("last", "terminated", "truncated"), np.ones(count, np.bool_))
    return Batch({"reward": np.arange(count, dtype=np.float32), **flags})


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_runs_freely_and_reports_its_band(kind: type[Any]) -> None:
    config = kind.Config(**BAND, log_every_pushes=1)
    inputs = {"data": {}, "priorities": {}}
    node = kind(config=config, context=Context("buffer", inputs=inputs))
    demos = (None,) if kind is not EpisodeReplayBuffer else ()
    assert kind.fires_on_any(config)
    assert not kind.fires_on_any(kind.Config())
    assert node.fire(step_rows(9), *demos, learned_batch(0)) == []
    # 4 rows are due for the eleventh row, and 16 may be ahead.
    assert len(node.fire(step_rows(2), *demos, None)) == 2
    metrics = node.ctx.records[-1].values
    assert metrics["samples_per_insert"] == 16
    assert metrics["samples_per_insert_least"] == 0
    assert metrics["samples_per_insert_most"] == 4 + 16
    assert node.fire(None, *demos, learned_batch(8)) == []  # the buffer waits for rows
    assert node.fire(None, *demos, learned_batch(8)) == []
    assert len(node.fire(step_rows(2), *demos, None)) == 1
    metrics = node.ctx.records[-1].values
    assert metrics["waited_for_rows_s"] > 0
    assert metrics["waited_for_learner_s"] == 0
    assert metrics["pushed_per_s"] > 0


def test_metrics_report_how_long_the_buffer_waited_for_the_learner() -> None:
    node = buffer(log_every_pushes=1, updates_per_push=30)
    node.fire(rows(60), None, None)  # emits batches without a request
    node.fire(rows(1), None, None)
    node.fire(rows(1), None, None)
    metrics = node.ctx.records[-1].values
    assert metrics["waited_for_learner_s"] > 0
    assert metrics["waited_for_rows_s"] == 0


def test_parameters_of_free_running_buffers_are_refused_in_lockstep() -> None:
    known = Surroundings({"data": {"reward": Column("float32")}}, {}, frozenset())
    with pytest.raises(
        UnsoundError, match="`band_rows` is only for free-running buffers; set `samples_per"
    ):
        NaiveReplayBuffer.describe(NaiveReplayBuffer.Config(band_rows=8), known)
    with pytest.raises(
        UnsoundError,
        match="needs `priorities`, which report that a batch was learned; connect `learner",
    ):
        NaiveReplayBuffer.describe(NaiveReplayBuffer.Config(samples_per_insert=8), known)


@pytest.mark.parametrize("kind", [NaiveReplayBuffer, AdvancedReplayBuffer])
def test_a_ratio_for_which_a_firing_gives_too_few_batches_is_refused(kind: Any) -> None:
    def describe(ratio: float, **rows: int) -> Any:
        columns = {"data": {"reward": Column("float32")}, "priorities": {}}
        known = Surroundings(columns, {}, frozenset(), rows=rows)
        config = kind.Config(samples_per_insert=ratio, updates_per_push=8, batch_size=64)
        return kind.describe(config, known)

    describe(4.0, data=128)
    describe(400.0)
    message = (
        "128 rows arrive with a token, for which 576 rows must be drawn, but a firing emits at"
    )
    with pytest.raises(UnsoundError, match=message) as raised:
        describe(4.5, data=128)
    assert raised.value.hint.startswith("write `updates_per_push: 9`")
    assert raised.value.key == "samples_per_insert"
    describe(4.5, data=112)


def test_priorities_without_effect_are_refused() -> None:
    inputs = {"data": {"reward": Column("float32")}, "priorities": {}}
    known = Surroundings(inputs, {}, frozenset())
    with pytest.raises(
        UnsoundError, match="draws uniformly, so priorities have no effect; connect"
    ):
        NaiveReplayBuffer.describe(NaiveReplayBuffer.Config(), known)
    free = NaiveReplayBuffer.Config(samples_per_insert=0.5)
    why = NaiveReplayBuffer.describe(free, known).nondeterministic
    assert why == "free-running, 0.5 rows drawn for each row that arrives, within 2048 rows"


GRAPH = """
extends: cartpole_dqn
nodes:
  buffer: {type: TYPE, size: 10_000, batch_size: 128, samples_per_insert: 4, band_rows: 1024, updates_per_push: 8}
  evaluator: null
edges:
  - learner.priorities -> buffer.priorities
  - learner -> collector: {latest: true}
warmup: []
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["advanced_buffer", "naive_buffer"])
@pytest.mark.parametrize("placement", ["serial", "threads"])
def test_in_a_graph_the_buffer_stays_within_its_band(
    placement: str, kind: str, tmp_path: Path
) -> None:
    graph = tmp_path / "free.yaml"
    graph.write_text(GRAPH.replace("TYPE", kind))
    checked = flowrl.load(graph).check()
    assert checked.problems == []
    assert any("fires on any input" in reason for reason in checked.reasons)
    result = flowrl.load(graph, {"buffer.log_every_pushes": 1}).run(
        placement=placement, train_iters=80, out=tmp_path / "run"
    )
    assert result.train_iters == 80
    lines = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    reports = [line for line in lines if line["node"] == "buffer"]
    assert reports
    for line in reports:
        due = (line["pushed_rows"] - 1000) * 4
        assert due - 1024 - 128 < line["sampled_rows"] <= max(due + 1024, 0)
