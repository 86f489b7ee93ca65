"""Modules beside a graph belong to that graph: several projects work in one process, and leave `sys.path` as it was."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

import flowrl
from flowrl.checks.check import check
from flowrl.core.errors import GraphError
from flowrl.core.project_modules import importable_modules
from flowrl.graph.loading import load_graph

GRAPH = """
nodes:
  c: {type: 'my_nodes:Mine'}
  d: {type: 'my_nodes:Judge'}
edges: [c -> d]
"""
NODES = """
import {helper}
import numpy as np
import flowrl

class Mine(flowrl.Node):
    '''{name}'s.'''

    role = "collector"
    data = flowrl.Out("samples")

    @classmethod
    def describe(cls, config, surroundings):
        return flowrl.Facts(outs={{"data": {{"x": flowrl.Column("float32")}}}}, env_steps=1)

    def fire(self):
        from my_late_module import VALUE
        self.ctx.count(env_steps=1)
        self.ctx.log(f"{{VALUE}} {{{helper}.NAME}}")
        return flowrl.Batch({{"x": np.zeros(1, np.float32)}})

class Judge(flowrl.Node):
    data = flowrl.In("samples")

    def fire(self, data):
        pass
"""


def project(folder: Path, helper: str) -> Path:
    """A project whose nodes import one module at their top and another one when they fire."""
    folder.mkdir()
    (folder / "my_nodes.py").write_text(NODES.format(name=folder.name, helper=helper))
    (folder / f"{helper}.py").write_text(f"NAME = {folder.name!r}\n")
    (folder / "my_late_module.py").write_text(f"VALUE = 'late module of {folder.name}'\n")
    (folder / "g.yaml").write_text(dedent(GRAPH))
    return folder / "g.yaml"


def log_of_run(graph: Path, out: Path, placement: str = "serial") -> str:
    flowrl.load(graph, {"limits.rounds": 1}).run(out=out, placement=placement, quiet=True)
    return (out / "logs" / "c.log").read_text().splitlines()[-1]


@pytest.mark.parametrize("placement", ["serial", "threads"])
def test_two_projects_with_modules_of_one_name_work_in_one_process(
    placement: str, tmp_path: Path
) -> None:
    first = project(tmp_path / "first", "my_helper")
    second = project(tmp_path / "second", "my_helper")
    path = list(sys.path)
    for number, graph in enumerate([first, second, first]):
        name = graph.parent.name
        log = log_of_run(graph, tmp_path / f"r{number}", placement)
        assert log.endswith(f"late module of {name} {name}")
        assert sys.path == path


@pytest.mark.slow
def test_two_projects_work_in_site_processes(tmp_path: Path) -> None:
    for name in ("first", "second"):
        graph = project(tmp_path / name, "my_helper")
        log = log_of_run(graph, tmp_path / f"r-{name}", "processes")
        assert log.endswith(f"late module of {name} {name}")


@pytest.mark.slow
def test_graphs_that_are_checked_first_run_with_their_own_modules(tmp_path: Path) -> None:
    from flowrl.graph.model import Limits
    from flowrl.runs.run import Run

    graphs = [project(tmp_path / name, "my_helper") for name in ("first", "second")]
    checked = [check(load_graph(graph)).require_sound() for graph in graphs]
    assert [c.graph.nodes["c"].cls.__doc__ for c in checked] == ["first's.", "second's."]
    for name, graph in zip(("first", "second"), checked, strict=True):
        Run(graph, out=tmp_path / f"r-{name}", limits=Limits(rounds=1)).run()
        log = (tmp_path / f"r-{name}" / "logs" / "c.log").read_text()
        assert f"late module of {name} {name}" in log


def test_a_module_of_another_project_cannot_be_imported(tmp_path: Path) -> None:
    first = project(tmp_path / "first", "first_helper")
    second = project(tmp_path / "second", "second_helper")
    check(load_graph(first)).require_sound()
    (second.parent / "second_helper.py").unlink()
    (second.parent / "my_nodes.py").write_text("import first_helper\n")
    with pytest.raises(GraphError, match="needs the module 'first_helper'"):
        check(load_graph(second)).require_sound()


def test_a_graph_that_is_loaded_again_has_the_same_classes(tmp_path: Path) -> None:
    first, second = (project(tmp_path / name, "my_helper") for name in ("first", "second"))

    def mine(graph: Path) -> object:
        return load_graph(graph).graph.nodes["c"].cls

    before = mine(first)
    assert mine(second) is not before
    assert mine(first) is before


def test_the_path_is_as_before_after_an_error(tmp_path: Path) -> None:
    graph = project(tmp_path / "first", "my_helper")
    (tmp_path / "first" / "my_nodes.py").write_text("raise ValueError('broken')\n")
    path = list(sys.path)
    with pytest.raises(GraphError, match="broken"):
        check(load_graph(graph)).require_sound()
    assert sys.path == path


def test_modules_that_the_program_imported_itself_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (project(tmp_path / name, "my_helper") for name in ("first", "second"))
    (tmp_path / "second" / "my_nodes.py").rename(tmp_path / "second" / "other_nodes.py")
    second.write_text(GRAPH.replace("my_nodes", "other_nodes"))
    monkeypatch.syspath_prepend(str(first.parent))
    import my_nodes

    check(load_graph(first)).require_sound()
    check(load_graph(second)).require_sound()
    assert sys.modules["my_nodes"] is my_nodes
    assert str(first.parent) in sys.path


def in_a_thread(do: Callable[[], None]) -> None:
    thread = threading.Thread(target=do)
    thread.start()
    thread.join()


def test_projects_at_the_same_time_need_modules_of_different_names(tmp_path: Path) -> None:
    first, second = (project(tmp_path / name, "my_helper") for name in ("first", "second"))
    problems: list[str] = []

    def load_second() -> None:
        problems.extend(map(str, load_graph(second).problems))

    with importable_modules([first.parent]):
        load_graph(first)
        in_a_thread(load_second)
    assert "the module 'my_nodes' beside the graph is hidden by" in problems[0]
    problems.clear()
    in_a_thread(load_second)
    assert problems == []


ENV = """
import numpy as np
import flowrl.nodes
import gymnasium
import my_helper

class MyEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (my_helper.SIZE,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(my_helper.SIZE, np.float32), {}

    def step(self, action):
        return np.zeros(my_helper.SIZE, np.float32), 1.0, False, False, {}
"""


@pytest.mark.slow
@pytest.mark.parametrize("envs", ["env_manager", "sync_subprocess_env_manager"])
@pytest.mark.usefixtures("forked_processes")
def test_envs_beside_the_graph_belong_to_it(envs: str, tmp_path: Path) -> None:
    for size in (2, 3):
        folder = tmp_path / str(size)
        folder.mkdir()
        (folder / "my_env.py").write_text(ENV)
        (folder / "my_helper.py").write_text(f"SIZE = {size}\n")
        graph = folder / "g.yaml"
        graph.write_text("extends: cartpole_dqn\nenv: {id: 'my_env:MyEnv'}\n")
        settings = {"envs.type": envs, "limits.train_iters": 1}
        result = flowrl.load(graph, settings).run(out=folder / "r", quiet=True)
        assert result.train_iters == 1
        policy = flowrl.policy(folder / "r", "last")
        assert policy.act(np.zeros(size, np.float32)) in (0, 1)
