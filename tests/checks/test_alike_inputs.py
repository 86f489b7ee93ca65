"""An expert's rows are not those of the agent."""

from __future__ import annotations

from typing import Any

import pytest

import flowrl


def problems(graph: dict[str, Any]) -> list[str]:
    return [str(problem) for problem in flowrl.load(graph).check().problems]


@pytest.mark.parametrize(
    ("graph", "edge", "other"),
    [
        ("cartpole_ppo_gail", "collector.data -> gail.expert", "gail.data"),
        ("cartpole_dqn_demos", "collector.data -> buffer.demos", "buffer.data"),
    ],
)
def test_an_agent_is_not_its_own_expert(graph: str, edge: str, other: str) -> None:
    problem = problems({"extends": graph, "nodes": {"demos": None}, "edges": [edge]})[0]
    port = edge.rpartition(".")[2]
    assert problem == (
        f"graph: {edge}: collector.data also goes to {other}, and the tokens of both must differ; connect something "
        f"else to {port}, such as demonstrations"
    )


def test_one_of_several_sources_of_an_expert_is_not_the_agent() -> None:
    edges = ["demos, collector -> gail.expert"]
    found = problems({"extends": "cartpole_ppo_gail", "edges": edges})
    assert any("collector.data also goes to gail.data" in problem for problem in found)


def test_an_empty_path_is_refused_as_such() -> None:
    graph = {"extends": "cartpole_dqn", "nodes": {"learner": {"begin_with": ""}}}
    [problem] = problems(graph)
    assert "nodes.learner.begin_with" in problem
