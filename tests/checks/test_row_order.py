"""Where a learner reads across rows, `check` proves that they arrive in the order of time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowrl.checks.check import check
from flowrl.core.batch import Batch
from flowrl.core.facts import Facts, Surroundings
from flowrl.core.functions import as_node
from flowrl.core.node import Node
from flowrl.core.ports import In, Out
from flowrl.graph.loading import load_data, load_graph

HERE = __name__
BUFFER = {"batch_size": 64, "updates_per_push": 1}
QUEUE = {"batch_size": 64, "updates_per_push": 4}  # as many rows leave it as arrive


@as_node
def bonus(data: Batch) -> Batch:
    return data


class Shuffle(Node):
    """Says that its rows are in another order."""

    data = In("samples")
    out = Out("samples")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"out": surroundings.inputs["data"]}, ordered={"out": False})

    def fire(self, data: Batch) -> Batch:
        return data


class Sort(Shuffle):
    """Says that its rows are in the order of time, whatever it gets."""

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"out": surroundings.inputs["data"]}, ordered={"out": True})


def problems(nodes: dict[str, Any], *edges: Any, extends: str = "cartpole_ppo") -> list[str]:
    graph = {"extends": extends, "nodes": {"evaluator": None, **nodes}, "edges": list(edges)}
    return [str(problem) for problem in check(load_data(graph)).problems]


@pytest.mark.parametrize(
    ("nodes", "path"),
    [
        ({"buffer": {"type": "naive_buffer", **BUFFER}}, "collector -> buffer -> learner"),
        ({"buffer": {"type": "advanced_buffer", **BUFFER}}, "collector -> buffer -> learner"),
        (
            {"buffer": {"type": "naive_buffer", **BUFFER}, "bonus": {"type": f"{HERE}:bonus"}},
            "collector -> buffer -> bonus -> learner",
        ),
        ({"buffer": {"type": f"{HERE}:Shuffle"}}, "collector -> buffer -> learner"),
    ],
)
def test_ppo_is_refused_behind_what_gives_single_rows(nodes: dict[str, Any], path: str) -> None:
    [problem] = problems(nodes, path)
    assert "learner.data needs rows in the order of time" in problem
    assert "buffer.out" in problem or "buffer.batches" in problem
    assert "put in its place what keeps the order, such as a queue_buffer" in problem


@pytest.mark.parametrize(
    ("nodes", "edges"),
    [
        ({"buffer": {"type": "queue_buffer", **QUEUE}}, ["collector -> buffer -> learner"]),
        ({"bonus": {"type": f"{HERE}:bonus"}}, ["collector -> bonus -> learner"]),
        ({"part": {"type": "rows", "count": 64}}, ["collector -> part -> learner"]),
        (
            {"mix": {"type": f"{HERE}:Shuffle"}, "sort": {"type": f"{HERE}:Sort"}},
            ["collector -> mix -> sort -> learner"],
        ),
    ],
)
def test_ppo_is_sound_behind_what_keeps_the_order(nodes: dict[str, Any], edges: list[str]) -> None:
    assert problems(nodes, *edges) == []


def test_a_fan_in_is_as_ordered_as_each_of_its_sources() -> None:
    nodes = {
        "mix": {"type": f"{HERE}:Shuffle"},
        "other": {"type": "sample_collector"},
        "more": {"type": "env_manager"},
    }
    edges = ["other <-> more", "learner -> other", "other -> mix", "collector, mix -> learner"]
    [problem] = problems(nodes, *edges)
    assert "mix.out gives single rows in another order" in problem


def test_recurrent_ppo_learns_from_unrolls_which_are_in_order_by_themselves() -> None:
    graph = {
        "extends": "cartpole_ppo",
        "policy": {"unroll_steps": 16},
        "nodes": {"buffer": {"type": "naive_buffer", "batch_size": 4, "updates_per_push": 1}},
        "edges": ["collector -> buffer -> learner"],
    }
    found = [str(problem) for problem in check(load_data(graph)).problems]
    assert not any("order of time" in problem for problem in found)


def test_buffers_that_look_for_the_rows_after_a_row_need_the_order_too() -> None:
    nodes = {"first": {"type": "naive_buffer", **BUFFER}, "buffer": {"type": "sequence_buffer"}}
    found = problems(nodes, "collector -> first -> buffer -> learner", extends="cartpole_dqn")
    assert any("buffer.data needs rows in the order of time" in problem for problem in found)


def test_sequences_that_would_end_with_each_token_are_refused() -> None:
    """With as many envs as rows in a token, each sequence had one step, and the burn-in left nothing to learn from."""
    graph = {"extends": "hiddencartpole_r2d2", "nodes": {"collector": {"origin": False}}}
    assert [str(problem) for problem in check(load_data(graph)).problems] == [
        "graph: buffer.data needs whole episodes, and collector.data gives tokens that end within them; write "
        "`origin: true` at collector, so that steps are followed from token to token"
    ]


def test_dqn_takes_rows_in_any_order() -> None:
    assert problems({}, extends="cartpole_dqn") == []


def test_the_file_that_changed_the_policy_is_named_and_not_the_one_with_the_edge(
    tmp_path: Path,
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: cartpole_dqn\npolicy: {type: ppo}\nwarmup: null\n")
    found = [str(problem) for problem in check(load_graph(mine)).problems]
    [order] = [problem for problem in found if "in the order of time" in problem]
    assert order.startswith(f"{mine}:2:1: learner.data needs rows")


def test_a_buffer_that_lacks_the_policy_of_its_learner_is_told_to_take_it() -> None:
    learner = {"policy": {"nstep": 5}}
    graph = {"extends": "cartpole_dqn", "policy": {"nstep": 1}, "nodes": {"learner": learner}}
    [problem] = [str(problem) for problem in check(load_data(graph)).problems]
    assert "learner.data needs rows in the order of time" in problem
    assert "give buffer the policy of this learner, such as `policy: {nstep: 5}`" in problem
    mended = {**graph, "nodes": {"learner": learner, "buffer": learner}}
    assert check(load_data(mended)).problems == []


@pytest.mark.parametrize(
    ("extends", "policy", "problem"),
    [
        (
            "cartpole_a2c",
            "reinforce",
            "learner.data needs the column 'offset' (int32), and collector.data does not give it; "
            "put an episode_collector in the place of collector",
        ),
        (
            "cartpole_dqn",
            "dqfd",
            "learner.data needs the column 'is_demo' (bool), and buffer.batches does not give it; "
            "let buffer draw demonstrations, too: `demos -> buffer.demos`",
        ),
        (
            "cartpole_bc",
            "ppo",
            "learner.data needs the column 'logp' (float32), and buffer.batches does not give it; "
            "only a collector with the learner's policy gives it; demonstrations have none",
        ),
    ],
)
def test_a_missing_column_of_an_algorithm_has_a_remedy(
    extends: str, policy: str, problem: str
) -> None:
    found = check(load_data({"extends": extends, "policy": {"type": policy}})).problems
    assert problem in [f"{one.what}; {one.hint}" for one in found]
