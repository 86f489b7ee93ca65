"""`python -m bench zoo`: the identity of graphs and variants, and the page."""

from __future__ import annotations

import pytest

from bench import zoo
from flowrl.api import load


@pytest.mark.parametrize("variant", zoo.VARIANTS)
def test_a_variant_is_a_sound_graph_without_a_memory(variant: str) -> None:
    graph, sets = zoo.settings_of(variant)
    checked = load(graph, sets).check()
    assert checked.problems == []
    assert "memory" not in checked.facts["collector"].outs["data"]
    assert checked.graph.nodes["envs"].config.env.config.wrappers
    assert zoo.graph_hash(variant).startswith(f"{zoo.graph_hash(graph)}+")
    assert zoo.goal_of(variant) == 475


def test_variants_have_a_table_of_their_own() -> None:
    run = {"status": "finished", "env_steps": 9, "train_iters": 1, "best_return": 80.0}
    record = {"goal": 475.0, "runs": {"0": {**run, "cpu_s": 1.0, "curve": [[1, 9.0], [9, 80.0]]}}}
    page = zoo.page({"cartpole_ppo": record, "hiddencartpole_ppo-plain": record})
    graphs, variants = page.split("## Without a memory")
    assert "| `cartpole_ppo` | 475 | 0/1 | 9 [9, 9] | 80 | 1 |" in graphs
    assert "`hiddencartpole_ppo-plain`" not in graphs
    assert "| `hiddencartpole_ppo-plain` | 475 | 0/1 |" in variants
