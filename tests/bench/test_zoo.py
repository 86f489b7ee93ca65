"""`python -m bench zoo`: the identity of graphs and variants, and the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import zoo
from flowrl.api import load

MEMORY, ADDED = zoo.COMPARISONS


@pytest.mark.parametrize("variant", zoo.VARIANTS)
def test_a_variant_is_a_sound_graph_of_its_own(variant: str) -> None:
    graph, sets = zoo.settings_of(variant)
    assert load(graph, sets).check().problems == []
    assert zoo.graph_hash(variant).startswith(f"{zoo.graph_hash(graph)}+")
    assert zoo.goal_of(variant) == zoo.goal_of(graph)


@pytest.mark.parametrize("variant", MEMORY.variants)
def test_variants_without_a_memory_have_none(variant: str) -> None:
    checked = load(*zoo.settings_of(variant)).check()
    assert "memory" not in checked.facts["collector"].outs["data"]
    assert checked.graph.nodes["envs"].config.env.config.wrappers


def test_seeds_are_the_first_ones_or_a_range() -> None:
    assert zoo.seeds_of("5") == range(5)
    assert zoo.seeds_of("5..9") == range(5, 10)


RUN = {"status": "finished", "env_steps": 9, "train_iters": 1, "best_return": 80.0}


def test_variants_have_tables_of_their_own() -> None:
    record = {"goal": 475.0, "runs": {"0": {**RUN, "cpu_s": 1.0, "curve": [[1, 9.0], [9, 80.0]]}}}
    page = zoo.page(
        dict.fromkeys(("cartpole_ppo", "hiddencartpole_ppo-plain", "pendulum_bc-mixed"), record)
    )
    graphs, _, variants = page.partition(f"## {MEMORY.title}")
    memory, _, added = variants.partition(f"## {ADDED.title}")
    row = "` | 475 | 0/1 | 9 [9, 9] | 80 | 1 |"
    assert f"| `cartpole_ppo{row}" in graphs
    assert "-plain" not in graphs
    assert f"| `hiddencartpole_ppo-plain{row}" in memory
    assert f"| `pendulum_bc-mixed{row}" in added
    assert "pendulum_bc-mixed" not in memory


def test_the_page_shows_the_shares_of_won_episodes_where_the_goal_is_one() -> None:
    runs = {
        str(seed): {**RUN, "best_win_rate": share, "cpu_s": 1.0, "curve": []}
        for seed, share in enumerate((0.97, 1.0, 0.98))
    }
    page = zoo.page({"bitflip_dqn_her": {"goal": 0.95, "runs": runs}})
    assert "| `bitflip_dqn_her` | 0.95 won | 0/3 | 9 [9, 9] | 80, 0.97–1 won | 1 |" in page


def test_the_goal_of_a_graph_may_be_about_a_share_of_won_episodes() -> None:
    assert zoo.goal_and_metric("bitflip_dqn_her") == (0.95, "win_rate")
    assert zoo.goal_and_metric("cartpole_ppo") == (475, "return_mean")


def test_evaluations_are_read_by_the_name_of_a_metric(tmp_path: Path) -> None:
    lines = (
        {
            "node": "evaluator",
            "env_steps": 0,
            "train_iters": 5,
            "return_mean": 1.0,
            "win_rate": 0.5,
        },
        {"node": "collector", "env_steps": 7, "return_mean": 2.0, "win_rate": 0.75},
        {"node": "evaluator", "env_steps": 8, "train_iters": 6, "return_mean": 3.0, "win_rate": 1},
    )
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert zoo.evaluations(metrics) == [(5, 1.0), (8, 3.0)]
    assert zoo.evaluations(metrics, "win_rate") == [(5, 0.5), (8, 1.0)]
