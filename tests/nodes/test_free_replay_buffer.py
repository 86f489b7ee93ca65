"""The free-running buffer keeps its band by waiting, and loses nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrl
from flowrl.batch import Batch
from flowrl.context import Context
from flowrl.nodes.buffers.free_replay_buffer import FreeReplayBuffer

BAND = {"samples_per_insert": 4.0, "band_rows": 16, "first_rows": 10, "batch_size": 8}


def rows(count: int) -> Batch:
    return Batch({"reward": np.arange(count, dtype=np.float32)})


def buffer(**params: Any) -> FreeReplayBuffer:
    context = Context("buffer", inputs={"data": {}, "priorities": {}})
    return FreeReplayBuffer(config=FreeReplayBuffer.Config(**{**BAND, **params}), context=context)


def done(count: int) -> Batch:
    return Batch({"priority": np.ones(count, np.float32)})


def test_nothing_is_given_before_the_first_rows_and_nothing_unasked() -> None:
    node = buffer(ahead_batches=2)
    assert node.fire(rows(9), None, None) == []
    assert node.fire(None, None, done(0)) == []
    assert len(node.fire(rows(2), None, None)) == 2  # asked for, and within the band
    assert node.fire(None, None, None) == []
    assert len(node.fire(None, None, done(8))) == 0  # 4 for the row behind the first ten, and 16


def test_what_the_learner_asks_for_is_given_when_rows_have_come() -> None:
    node = buffer(ahead_batches=1)
    node.fire(rows(10), None, done(0))
    assert len(node.fire(None, None, done(8))) == 1
    assert node.fire(None, None, done(8)) == []
    assert len(node.fire(rows(4), None, None)) == 1


def test_where_too_little_was_taken_batches_are_given_unasked() -> None:
    node = buffer(most_batches=30)
    assert len(node.fire(rows(60), None, None)) == 23  # 200 rows are due, of which 16 may wait
    assert node._asked == -23
    assert len(node.fire(rows(3), None, None)) == 1


def test_a_token_that_demands_more_than_a_firing_gives_is_refused() -> None:
    told = "7 rows came, for which 28 are due, and a firing gives 3 batches of 8; make `most_"
    with pytest.raises(ValueError, match=told):
        buffer(most_batches=3).fire(rows(7), None, None)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 3), min_size=30, max_size=80), st.floats(0.3, 6.0))
def test_the_band_is_kept_whoever_is_faster(events: list[int], ratio: float) -> None:
    """A learner of one batch at a time, a collector of three rows; both at random."""
    node = buffer(samples_per_insert=ratio, most_batches=64)
    queue = len(node.fire(None, None, done(0)))
    for event in events:
        if event == 0 and queue:
            queue += len(node.fire(None, None, done(8))) - 1
        else:
            queue += len(node.fire(rows(3), None, None))
        if node._pushed >= 10:
            due = (node._pushed - 10) * ratio
            assert due - 16 - 8 < node._sampled <= due + 16


def test_a_saved_buffer_knows_what_was_asked_for() -> None:
    node, copy = buffer(ahead_batches=3), buffer(ahead_batches=3)
    node.fire(rows(9), None, done(0))
    copy.load_state_dict(node.state_dict())
    assert len(copy.fire(rows(1), None, None)) == len(node.fire(rows(1), None, None)) == 2


GRAPH = """
extends: cartpole_dqn_per
nodes:
  buffer: {type: free_buffer, size: 10_000, batch_size: 128, samples_per_insert: 4, band_rows: 1024, most_batches: 8}
  evaluator: null
edges:
  - learner -> collector: {latest: true}
warmup: []
"""


@pytest.mark.parametrize("placement", ["serial", "threads"])
def test_in_a_graph_it_trains_within_its_band(placement: str, tmp_path: Path) -> None:
    graph = tmp_path / "free.yaml"
    graph.write_text(GRAPH)
    checked = flowrl.load(graph).check()
    assert checked.problems == []
    assert any("fires on any input" in reason for reason in checked.reasons)
    result = flowrl.load(graph, {"buffer.log_every_pushes": 1}).run(
        placement=placement, train_iters=150, out=tmp_path / "run"
    )
    assert result.train_iters == 150
    lines = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    told = [line for line in lines if line["node"] == "buffer"]
    assert told
    for line in told:
        due = (line["pushed_rows"] - 1000) * 4
        assert due - 1024 - 128 < line["sampled_rows"] <= due + 1024
