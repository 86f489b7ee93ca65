"""Graphs whose envs are not made, because their package is missing or because of --no-envs."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flowrl.api import load
from tests.cli.conftest import Called, one_line

GRAPH = "crazyclimber_ppo"
Flowrl = Callable[..., Called]


@pytest.fixture
def without_atari(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the package of the graph's env were not installed."""
    monkeypatch.setitem(sys.modules, "ale_py", None)


@pytest.mark.usefixtures("without_atari")
def test_check_refuses_a_graph_whose_env_package_is_missing(flowrl: Flowrl) -> None:
    status, out, _ = flowrl("check", GRAPH)
    assert status == 2
    assert "env: the env 'ALE/CrazyClimber-v5' needs the package 'ale_py'; pip install" in out
    assert out.count("needs the package") == 1  # of the section, and not of each node that takes it


@pytest.mark.usefixtures("without_atari")
def test_check_without_envs_checks_the_rest_and_says_what_it_left_out(flowrl: Flowrl) -> None:
    status, out, _ = flowrl("check", GRAPH, "--no-envs")
    assert status == 0
    assert "crazyclimber_ppo: sound. 4 nodes, 4 edges." in out
    assert "every round: collector, learner" in out
    assert "Deterministic, as far as was checked." in out
    assert out.partition("Not checked, because envs were not made")[2].splitlines()[2:] == [
        "  envs: its env was not made",
        "  collector: it depends on envs",
        "  evaluator: its env was not made",
        "  learner: it depends on collector",
    ]
    status, out, _ = flowrl("check", GRAPH, "--no-envs", "--json")
    found = one_line(out)
    assert (status, found["ok"], found["envs_checked"]) == (0, True, False)
    assert found["not_checked"]["collector"] == "it depends on envs"


def test_check_says_in_json_that_envs_were_checked(flowrl: Flowrl) -> None:
    found = one_line(flowrl("check", "cartpole_dqn", "--json")[1])
    assert (found["envs_checked"], found["not_checked"]) == (True, {})


def test_check_without_envs_finds_what_needs_no_env(flowrl: Flowrl) -> None:
    status, out, _ = flowrl("check", GRAPH, "--no-envs", "--set", "evaluator.weights.every=0")
    assert status == 2
    assert "edges: evaluator.weights: every is 0; expected" in out


@pytest.mark.usefixtures("without_atari")
@pytest.mark.parametrize("file", ["a.dot", "a.md", "a.html"])
def test_a_graph_is_drawn_without_its_env_package(
    flowrl: Flowrl, tmp_path: Path, file: str
) -> None:
    status, _, err = flowrl("draw", GRAPH, "--placement", "processes", "-o", str(tmp_path / file))
    assert (status, err) == (0, "")
    assert "collector" in (tmp_path / file).read_text(encoding="utf-8")


@pytest.mark.usefixtures("without_atari")
def test_a_graph_is_expanded_and_compared_without_its_env_package(flowrl: Flowrl) -> None:
    status, out, _ = flowrl("expand", GRAPH)
    assert status == 0
    assert "id: ALE/CrazyClimber-v5" in out
    assert flowrl("diff", GRAPH, GRAPH)[:2] == (0, "no difference\n")


def test_a_missing_module_of_an_env_by_import_path_leaves_the_rest_to_be_drawn() -> None:
    graph = load("cartpole_dqn", {"env.id": "nowhere_at_all:MyEnv"})
    [problem] = graph.check().problems  # of the section, and not of each node that takes it
    assert problem.what.startswith("env: cannot import 'nowhere_at_all'")
    found = graph.check(envs="make_if_installed")
    assert found.ok
    assert found.undescribed["envs"].startswith("cannot import 'nowhere_at_all'")
    assert "digraph" in graph.draw()


def test_phases_of_unknown_length_are_shown_by_their_steps(flowrl: Flowrl) -> None:
    out = flowrl("check", "cartpole_dqn", "--no-envs")[1]
    assert "warm-up, 1000 env steps: collector -> buffer\n" in out
    drawn = load("cartpole_dqn", {"env.id": "nowhere_at_all:MyEnv"}).draw()
    assert "1000 env steps: collector -&gt; buffer" in drawn


def test_demonstrations_are_described_without_their_env(flowrl: Flowrl) -> None:
    graph = ["cartpole_dqn_demos", "--no-envs", "--json"]
    assert "demos" not in one_line(flowrl("check", *graph)[1])["not_checked"]
    status, out, _ = flowrl("check", *graph, "--set", "policy.gamma=0.5")
    assert status == 2
    assert any("gamma" in str(problem) for problem in one_line(out)["problems"])


def test_facts_that_envs_do_not_decide_are_still_checked() -> None:
    """A graph without envs is checked as usual."""
    data = {
        "nodes": {"c": {"type": "tests.toys.toy_nodes:Source"}, "l": "tests.toys.toy_nodes:Learner"}
    }
    made = load({**data, "edges": ["c -> l", "l -> c"]}).check()
    skipped = load({**data, "edges": ["c -> l", "l -> c"]}).check(envs="skip")
    assert made.facts == skipped.facts
    assert skipped.undescribed == {}
