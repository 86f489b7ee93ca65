"""What the code that a graph or a crash file names may do, verb by verb."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Called

Flowrl = Callable[..., Called]

CALLS = """
from pathlib import Path
import gymnasium

Path("imported").touch()

def make_env(**kwargs):
    Path("called").touch()
    return gymnasium.make("CartPole-v1", **kwargs)
"""


@pytest.fixture
def hostile(folder: Path) -> Path:
    """A graph whose env is a program that leaves a file."""
    path = folder / "hostile.yaml"
    path.write_text(
        'extends: cartpole_dqn\nenv: {id: "subprocess:call", kwargs: {args: [touch, called]}}\n'
    )
    return path


@pytest.fixture
def graph_with_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A graph whose env is made by a function of a module beside it, which leaves a file when it is called."""
    (folder / "makes_an_env.py").write_text(CALLS)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "makes_an_env", raising=False)
    path = folder / "own.yaml"
    path.write_text('extends: cartpole_dqn\nenv: {id: "makes_an_env:make_env"}\n')
    return path


@pytest.mark.parametrize("verb", ["check", "draw", "run"])
def test_no_verb_calls_a_function_of_the_standard_library(
    verb: str, hostile: Path, flowrl: Flowrl
) -> None:
    status, out, err = flowrl(verb, str(hostile))
    assert status == 2
    assert "'subprocess:call' belongs to Python's standard library; name a class or" in out + err
    assert not Path("called").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            {
                "$part": "flowrl.nodes.envs.gymnasium:Gymnasium",
                "config": {"id": "subprocess:call", "kwargs": {"args": ["touch", "called"]}},
            },
            "'subprocess:call' belongs to Python's standard library",
        ),
        (
            {"$partial": {"$object": "subprocess:call"}, "args": [["touch", "called"]], "kwargs": {}},
            "'subprocess:call' belongs to Python's standard library",
        ),
        (
            {"$part": "subprocess:Popen", "config": {"args": ["touch", "called"]}},
            "'subprocess:Popen' belongs to Python's standard library",
        ),
        ({"$part": "gymnasium:Env", "config": {}}, "is not the type of an env"),
    ],
)  # fmt: skip
def test_replay_does_not_call_a_function_of_the_standard_library(
    env: dict[str, Any], message: str, folder: Path, flowrl: Flowrl
) -> None:
    crash = {
        "format": "flowrl env crash 2", "env": env, "make_index": 0, "index": 0, "seed": 0, "options": {}, "step": 0,
        "what": "reset raised", "traceback": "", "timeout_s": None, "complete": True, "dtype": "float64", "actions": [],
    }  # fmt: skip
    (folder / "crash.json").write_text(json.dumps(crash))
    status, _, err = flowrl("replay", "crash.json")
    assert status == 2
    assert err.startswith("flowrl: crash.json: its env cannot be made: ")
    assert message in err
    assert not Path("called").exists()


@pytest.mark.parametrize("words", [("check",), ("draw",)])
def test_check_and_draw_make_an_env(
    words: tuple[str, ...], graph_with_module: Path, flowrl: Flowrl
) -> None:
    assert flowrl(*words, str(graph_with_module))[0] == 0
    assert Path("called").exists()


@pytest.mark.parametrize("words", [("expand",), ("check", "--no-envs"), ("diff", "cartpole_dqn")])
def test_verbs_that_make_no_env_do_not_import_its_module(
    words: tuple[str, ...], graph_with_module: Path, flowrl: Flowrl
) -> None:
    assert flowrl(*words, str(graph_with_module))[0] == 0
    assert not Path("imported").exists()


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["expand", "check"])
@pytest.mark.parametrize(
    ("graph", "name"),
    [
        ("nodes: {spy: {type: 'antigravity:fly'}}\n", "antigravity:fly"),
        ("policy: {type: 'subprocess:Popen'}\n", "subprocess:Popen"),
    ],
)
def test_types_of_the_standard_library_are_not_imported(
    verb: str, graph: str, name: str, folder: Path, flowrl: Flowrl
) -> None:
    Path("g.yaml").write_text("extends: cartpole_dqn\n" + graph)
    status, out, err = flowrl(verb, "g.yaml")
    assert status == 2
    assert f"'{name}' belongs to Python's standard library" in out + err
    assert "antigravity" not in sys.modules


def test_a_model_is_no_function_of_the_standard_library(folder: Path, flowrl: Flowrl) -> None:
    model = "{type: module, path: 'os:system'}"
    status, out, _ = flowrl("check", "cartpole_dqn", "--set", f"policy.model={model}")
    assert status == 2
    assert "'os:system' belongs to Python's standard library" in out
