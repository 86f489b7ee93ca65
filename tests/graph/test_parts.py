"""Lists of parts: read with places, checked one by one, written back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl.core.config import PartSpec
from flowrl.core.errors import GraphError
from flowrl.graph.yaml_text import read_yaml
from tests.graph.test_json_schema import errors

WRAPPERS = "[{type: time_limit, steps: 7}, action_repeat]"


def graph(folder: Path, wrappers: str, more: str = "") -> Path:
    path = folder / "g.yaml"
    path.write_text(
        f"extends: cartpole_dqn\nenv:\n  wrappers: {wrappers}\n"
        f"nodes: {{evaluator: {{episodes: 2, stop_value: null{more}}}}}\n"
    )
    return path


def wrappers_of(loaded: Any, node: str) -> list[tuple[str, dict[str, Any]]]:
    specs = loaded.graph.nodes[node].config.env.config.wrappers
    assert all(isinstance(spec, PartSpec) for spec in specs)
    return [(spec.type, spec.config.model_dump()) for spec in specs]


def test_a_list_of_parts_is_read_in_its_order(tmp_path: Path) -> None:
    checked = flowrl.load(graph(tmp_path, WRAPPERS)).check()
    limit = ("time_limit", {"only": None, "steps": 7})
    repeat = ("action_repeat", {"only": None, "n": 4, "brightest": False})
    assert wrappers_of(checked, "envs") == wrappers_of(checked, "evaluator") == [limit, repeat]


@pytest.mark.parametrize(
    ("more", "left"),
    [(", env: {wrappers: [previous]}", ["previous"]), (", env: {wrappers: null}", [])],
)
def test_a_node_gives_a_list_of_its_own_or_none(more: str, left: list[str], tmp_path: Path) -> None:
    checked = flowrl.load(graph(tmp_path, WRAPPERS, more)).check()
    assert [name for name, _ in wrappers_of(checked, "evaluator")] == left
    assert len(wrappers_of(checked, "envs")) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("{type: previous}", r"g.yaml:3:13: env.wrappers is .*; expected a list of wrappers"),
        ("previous", r"g.yaml:3:13: env.wrappers is 'previous'; expected a list of wrappers"),
        (
            "[previos]",
            r"g.yaml:3:14: env.wrappers\[0\]: unknown wrapper type 'previos'; did you me",
        ),
        ("[previous, {n: 2}]", r"g.yaml:3:24: env.wrappers\[1\]: missing 'type'"),
        ("[{type: time_limit}]", r"env.wrappers\[0\]: missing required parameter 'steps'"),
        ("[{type: frame_stack, m: 2}]", r"env.wrappers\[0\]: unknown key 'm'"),
        (
            "[{type: wrapper, id: nowhere}]",
            r"env.wrappers\[0\].id is 'nowhere'; expected such as gymnasium.wrappers:Rescale",
        ),
        (
            "[{type: reward_clip, low: 1, high: 1}]",
            r"env.wrappers\[0\]: low is 1 and high is 1; low must be less than high",
        ),
        (
            "[{type: reward_goal, reached: 0}]",
            r"env.wrappers\[0\]: with `reached: 0` and `otherwise: 0`, all rewards are 0; give one",
        ),
        ("[{type: frame_stack, n: 0}]", r"env.wrappers\[0\].n is 0; expected greater than or"),
        ("[mlp]", r"env.wrappers\[0\]: unknown wrapper type 'mlp'"),
    ],
)
def test_a_mistake_in_a_list_of_parts_is_reported_with_its_location(
    written: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GraphError, match=problem):
        flowrl.load(graph(tmp_path, written)).run(train_iters=1)


@pytest.mark.slow
def test_a_run_with_a_list_of_parts_is_repeated_by_its_resolved_graph(tmp_path: Path) -> None:
    path = graph(tmp_path, WRAPPERS)
    first = flowrl.load(path).run(train_iters=10, out=tmp_path / "a", placement="processes")
    again = flowrl.load(tmp_path / "a" / "graph.yaml").run(train_iters=10, out=tmp_path / "b")
    assert first.digest == again.digest


def test_a_part_beside_the_graph_may_be_in_the_list(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from flowrl.nodes.envs.wrappers.wrapper import Wrapper\n\n\n"
        "class Same(Wrapper):\n    def wrap(self, env):\n        return env\n"
    )
    run = flowrl.load(graph(tmp_path, "['mine:Same']")).run(train_iters=2, out=tmp_path / "a")
    again = flowrl.load(tmp_path / "a" / "graph.yaml").run(train_iters=2, out=tmp_path / "b")
    assert run.digest == again.digest


@pytest.mark.parametrize(
    ("written", "good"), [(WRAPPERS, True), ("[{type: frame_stack, m: 1}]", False), ("3", False)]
)
def test_the_schema_knows_lists_of_parts(written: str, good: bool, tmp_path: Path) -> None:
    path = graph(tmp_path, written)
    plain = read_yaml(path, "g").plain()
    plain["env"] |= {"type": "gymnasium", "id": "CartPole-v1"}
    assert (errors(plain) == []) is good
