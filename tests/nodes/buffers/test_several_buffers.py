"""Several buffers for one learner: demonstrations, row splitters, replicas, and priorities across them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl.graphs
from flowrl.core.batch import Batch, Column
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.nodes.buffers.advanced_replay_buffer import AdvancedReplayBuffer
from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
from flowrl.nodes.buffers.row_splitter import RowSplitter


def rows(*values: float) -> Batch:
    return Batch({"obs": np.array(values, np.float32)})


def with_demos(kind: type[Any], **params: Any) -> Any:
    config = kind.Config(**{"batch_size": 10, "demo_draw": "binomial", **params})
    node = kind(config=config, context=Context("buffer", inputs={"data": {}, "demos": {}}))
    node.push_demos(rows(-1, -2, -3))
    node.push(rows(*range(1, 101)))
    return node


@pytest.mark.parametrize("kind", [NaiveReplayBuffer, AdvancedReplayBuffer])
def test_the_number_of_demonstrations_is_binomial_and_they_are_the_last_rows(
    kind: type[Any],
) -> None:
    node = with_demos(kind, demo_share=0.3)
    batches = node.draw(400, 10)
    counts = np.array([int(batch["is_demo"].sum()) for batch in batches])
    assert all(len(batch) == 10 for batch in batches)
    for batch, count in zip(batches, counts, strict=True):
        assert (batch["obs"] < 0).tolist() == [False] * (10 - count) + [True] * count
    assert set(counts.tolist()) >= {0, 1, 2, 3, 4, 5, 6}
    assert abs(counts.mean() - 3) < 4 * np.sqrt(10 * 0.3 * 0.7 / 400)
    assert abs(counts.var() - 2.1) < 0.6


@pytest.mark.parametrize("kind", [NaiveReplayBuffer, AdvancedReplayBuffer])
@pytest.mark.parametrize("replace", [True, False])
def test_a_loaded_buffer_draws_the_same_numbers_of_demonstrations(
    kind: type[Any], replace: bool
) -> None:
    node, copy = (with_demos(kind, demo_share=0.1, replace=replace) for _ in range(2))
    node.draw(7, 10)
    copy.load_state_dict(node.state_dict())
    a, b = (Batch.concat(one.draw(9, 10)) for one in (node, copy))
    assert all(np.array_equal(a[name], b[name]) for name in a)


def test_a_row_splitter_splits_tokens_and_refuses_unequal_parts() -> None:
    token = rows(*range(10))
    assert [b["obs"].tolist() for b in RowSplitter(first=2, count=6, parts=3).fire(token)] == [
        [2, 3],
        [4, 5],
        [6, 7],
    ]
    assert [b["obs"].tolist() for b in RowSplitter(first=7).fire(token)] == [[7, 8, 9]]
    with pytest.raises(
        ValueError, match="a token has 10 rows, but rows 0 to 10 are to be split into 3"
    ):
        RowSplitter(parts=3).fire(token)
    with pytest.raises(ValueError, match="a token has 10 rows, but rows 8 to 11"):
        RowSplitter(first=8, count=3).fire(token)
    known = Surroundings({"data": {"obs": Column("float32")}}, {}, frozenset())
    with pytest.raises(UnsoundError, match="5 rows cannot be split into 2 equal parts"):
        RowSplitter.describe(RowSplitter.Config(count=5, parts=2), known)


SHARDS = """
extends: cartpole_dqn
nodes:
  collector: {n_sample: 64}
  buffer:
    {type: advanced_buffer, replicas: 2, size: 2000, batch_size: 32, updates_per_push: 2, log_every_pushes: 1}
  split: {type: rows, parts: 2}
  evaluator: null
edges:
  - learner.priorities -> split -> buffer.priorities
warmup:
  - {edges: [collector -> buffer], steps: 500, set: {collector.policy: random}}
"""

ALTERNATING_SHARDS = """
extends: shards.yaml
nodes:
  split_batches: {type: rows, parts: 2}
  split: null
edges:
  - buffer -> split_batches -> learner
  - learner.priorities -> buffer.priorities
"""

TWO_BUFFERS = """
extends: cartpole_dqn
nodes:
  agent: {type: advanced_buffer, size: 5000, batch_size: 48, updates_per_push: 2}
  expert: {type: advanced_buffer, size: 2000, batch_size: 16, updates_per_push: 2}
  demos: {type: demos, path: DEMOS}
  agent_rows: {type: rows, count: 48}
  expert_rows: {type: rows, first: 48}
  buffer: null
  evaluator: null
edges:
  - collector -> agent
  - demos -> expert
  - agent, expert -> learner
  - learner.priorities -> agent_rows -> agent.priorities
  - learner.priorities -> expert_rows -> expert.priorities
warmup:
  - {edges: [collector -> agent], steps: 500, set: {collector.policy: random}}
"""
DEMOS = Path(str(flowrl.graphs.__file__)).parent / "cartpole_demos.npz"
GRAPHS = {"shards": SHARDS, "alternating": ALTERNATING_SHARDS, "two": TWO_BUFFERS}


def write_graphs(folder: Path) -> dict[str, Path]:
    for name, text in GRAPHS.items():
        (folder / f"{name}.yaml").write_text(text.replace("DEMOS", str(DEMOS)))
    return {name: folder / f"{name}.yaml" for name in GRAPHS}


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize(
    "others", [["threads"], pytest.param(["processes"], marks=pytest.mark.slow)]
)
def test_graphs_with_several_buffers_give_the_same_bits_in_every_placement(
    name: str, others: list[str], tmp_path: Path
) -> None:
    graph = write_graphs(tmp_path)[name]
    assert [str(p) for p in flowrl.load(graph).check().problems] == []
    results = [
        flowrl.load(graph).run(placement=p, train_iters=40, out=tmp_path / p)
        for p in ("serial", *others)
    ]
    assert len({result.digest for result in results}) == 1
    assert all(result.deterministic for result in results)


def test_priorities_are_sent_to_the_shard_of_their_rows() -> None:
    config = AdvancedReplayBuffer.Config(batch_size=4, bookkeeping=True)
    shards = [
        AdvancedReplayBuffer(config=config, context=Context("buffer", replica=k)) for k in range(2)
    ]
    for k, shard in enumerate(shards):
        shard.push(rows(*range(100 * k, 100 * k + 50)))
    joined = Batch.concat([shard.sample() for shard in shards])
    sent = Batch({"priority": joined["obs"] + 1})
    for shard, part in zip(shards, RowSplitter(parts=2).fire(sent), strict=True):
        shard.update(part["priority"])
    for k, shard in enumerate(shards):
        mine = joined.take(slice(4 * k, 4 * k + 4))
        priorities = shard.ring.metadata["priority"][mine["row_id"]]
        assert priorities.round(2).tolist() == (mine["obs"] + 1).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["naive_buffer", "advanced_buffer"])
def test_demonstrations_need_no_origin_columns(kind: str, tmp_path: Path) -> None:
    graph = flowrl.load(
        "cartpole_dqn_demos",
        {"collector.origin": True, "buffer.type": kind, "buffer.demo_draw": "binomial"},
    )
    assert graph.check().problems == []
    assert graph.run(train_iters=8, out=tmp_path / "run").train_iters == 8


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["naive_buffer", "advanced_buffer"])
def test_a_learner_is_pretrained_from_demonstrations_before_the_first_env_step(
    kind: str, tmp_path: Path
) -> None:
    graph = flowrl.load(
        {
            "extends": "cartpole_dqn_demos",
            "nodes": {"buffer": {"type": kind, "updates_per_push": 4}},
            "warmup": [
                {"edges": ["demos -> buffer -> learner"], "rounds": 3},
                {"edges": ["collector -> buffer"], "rounds": 4},
            ],
        }
    )
    one, two = (
        graph.run(train_iters=n, out=tmp_path / str(n), placement=placement)
        for n, placement in [(12, "serial"), (20, "threads")]
    )
    assert (one.train_iters, one.env_steps) == (12, 0)
    assert (two.train_iters, two.env_steps) == (20, 6 * 256)
    assert graph.run(train_iters=20, out=tmp_path / "s").digest == two.digest
