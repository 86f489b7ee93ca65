"""The YAML of docs/graph.md is true: each example is sound by itself, or laid over a bundled graph."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flowrl.api import load
from flowrl.graph.keywords import NODE_KEYS, PHASE_KEYS, ROOT_KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "graph.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
WHOLE = [text for text in EXAMPLES if text.startswith("about:")]
PART_GRAPH = [text for text in EXAMPLES if "novelty" in text]
LAID_OVER = [t for t in EXAMPLES if t not in (*WHOLE, *PART_GRAPH) and "agent, expert" not in t]

MY_NODES = """
import flowrl
from flowrl import Batch

@flowrl.as_node
def clip_reward(data: Batch) -> Batch:
    return data.replace(reward=data["reward"].clip(-1, 1))
"""


def problems(path: Path) -> list[str]:
    return [str(problem) for problem in load(path).check().problems]


def test_the_page_has_examples() -> None:
    assert (len(WHOLE), len(PART_GRAPH), len(LAID_OVER)) == (1, 2, 8)


@pytest.mark.slow
@pytest.mark.parametrize("text", LAID_OVER)
def test_an_example_is_sound_over_a_bundled_graph(text: str, tmp_path: Path) -> None:
    graph = tmp_path / "g.yaml"
    graph.write_text(text if "extends:" in text else f"extends: cartpole_dqn\n{text}")
    assert problems(graph) == []


[STATEMENTS] = [text for text in EXAMPLES if "agent, expert" in text]
# What the example of a statement needs beside `cartpole_dqn`.
SURROUNDINGS = {
    "rnd -> buffer": "nodes: {rnd: rnd}\n",
    "envs, more": "nodes: {more: env_manager}\n",
    "buffer.priorities": (
        "nodes: {buffer: {type: advanced_buffer, size: 1000, batch_size: 64, updates_per_push: 8}}\n"
    ),
    "agent, expert": """
nodes:
  collector: null
  agent: {type: sample_collector, n_sample: 128}
  expert: {type: sample_collector, n_sample: 128, policy: random}
  more: env_manager
warmup: null
""",
}
MORE_EDGES = {
    "agent, expert": """\
  - agent <-> envs
  - expert <-> more
  - learner -> agent
  - learner -> expert
"""
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement", [line for line in STATEMENTS.splitlines() if line.startswith("  - ")]
)
def test_each_way_to_write_an_edge_is_sound(statement: str, tmp_path: Path) -> None:
    text = "".join(["extends: cartpole_dqn\n", *_of(SURROUNDINGS, statement), "edges:\n"])
    text += "".join([statement, "\n", *_of(MORE_EDGES, statement)])
    (tmp_path / "g.yaml").write_text(text, encoding="utf-8")
    assert problems(tmp_path / "g.yaml") == []


def _of(texts: dict[str, str], statement: str) -> list[str]:
    return [text for words, text in texts.items() if words in statement]


def test_the_first_example_is_a_sound_graph(tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text(WHOLE[0], encoding="utf-8")
    assert problems(tmp_path / "g.yaml") == []


@pytest.mark.slow
def test_the_part_graph_is_sound_where_it_is_used(tmp_path: Path) -> None:
    part, use = PART_GRAPH
    (tmp_path / "novelty.yaml").write_text(part, encoding="utf-8")
    (tmp_path / "my_nodes.py").write_text(MY_NODES, encoding="utf-8")
    (tmp_path / "g.yaml").write_text(f"extends: cartpole_dqn\n{use}", encoding="utf-8")
    assert problems(tmp_path / "g.yaml") == []


@pytest.mark.parametrize("key", [*ROOT_KEYS, *NODE_KEYS, *PHASE_KEYS, "extends", "ports"])
def test_every_key_is_in_a_table_of_the_page(key: str) -> None:
    assert re.search(rf"^\| `{key}` \|", PAGE, re.M)
