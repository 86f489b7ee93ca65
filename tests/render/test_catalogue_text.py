"""The catalogue as text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from flowrl.core.config import Config, param
from flowrl.core.errors import UsageError
from flowrl.graph.bundled import bundled_graphs
from flowrl.graph.catalogue import Catalogue, type_summary
from flowrl.render.catalogue_text import (
    limits_words,
    show_catalogue,
    show_graphs,
    show_type,
    type_words,
)
from tests.render.graphs_to_show import HERE


def block(text: str, title: str) -> list[str]:
    """The lines below a title, their words one space apart."""
    lines = text.split(f"{title}\n", 1)[1].split("\n\n")[0].splitlines()
    return [" ".join(line.split()) for line in lines]


def test_every_type_has_a_line() -> None:
    catalogue, text = Catalogue(), show_catalogue()
    for kind in catalogue.kinds():
        for name in catalogue.names(kind):
            assert f"  {name} " in text
            assert type_summary(catalogue.find(kind, name)) in text


def test_kinds_are_titles_and_nodes_come_first() -> None:
    titles = [line for line in show_catalogue().splitlines() if line and line[0] != " "]
    assert titles == [
        "Nodes",
        "Envs",
        "Exploring steps",
        "Hooks",
        "Launchers",
        "Layers",
        "Models",
        "Optimisers",
        "Policies",
        "Storages",
        "Transforms",
        "Wrappers",
        "Ports and parameters of one of them: flowrl nodes NAME",
    ]


def test_every_bundled_graph_has_a_line() -> None:
    lines = show_graphs().splitlines()
    assert [line.split()[0] for line in lines] == bundled_graphs()
    assert lines[bundled_graphs().index("cartpole_dqn")].split()[1] == "DQN"
    assert all(line.endswith(".") for line in lines)


def test_a_node_is_shown_with_its_ports() -> None:
    text = show_type("naive_buffer")
    assert text.startswith("naive_buffer (node): The naive replay buffer: keeps the newest rows")
    assert block(text, "Inputs") == [
        "data samples 1 token a firing",
        "demos samples 1 token a firing, optional: kept separately from the agent's rows",
        "priorities priorities auto tokens a firing, begins with tokens: may close a loop, optional: "
        "free-running: each token reports a learned batch; draws stay uniform",
    ]
    assert block(text, "Outputs") == ["batches samples updates_per_push tokens a firing"]
    assert (
        "  with `samples_per_insert` it fires on any input; it gives at most the rates below"
        in text
    )


def test_services_say_what_may_be_called() -> None:
    text = show_type("env_manager")
    assert block(text, "Services") == [
        "serve env_manager spec(), seed(), set_reset_options(), reset(), advance(), send(), recv(), one client"
    ]


def test_parameters_are_shown_with_type_default_range_and_meaning() -> None:
    found = block(show_type(f"{HERE}Mixer"), "Parameters")
    assert found == [
        "times int = 2 1 to 9 tokens for each that comes in",
        "how str = plain in which way",
    ]


def test_every_parameter_of_a_policy_is_shown_with_its_meaning() -> None:
    found = block(show_type("dqn"), "Parameters")
    fields = Catalogue().find("policy", "dqn").Config.model_fields
    assert [line.split()[0] for line in found] == list(fields)
    for line, info in zip(found, fields.values(), strict=True):
        assert " ".join(info.description.split()) in line


def test_a_part_without_default_is_required_or_a_section() -> None:
    line = next(s for s in block(show_type("sample_collector"), "Parameters") if "policy" in s)
    assert line == (
        "policy policy required the policy that acts (default: the section 'policy') (a warm-up may set it)"
    )


def test_a_name_in_capitals_is_found() -> None:
    assert show_type("PPO") == show_type("ppo")


def test_a_type_of_ones_own_is_shown_by_its_path() -> None:
    text = show_type(f"{HERE}Mixer")
    assert text.startswith(f"{HERE}Mixer (node): Gives several tokens for one, and has an")
    assert block(text, "Inputs")[1] == (
        "marks marks times tokens a firing, begins with tokens: may close a loop, optional"
    )


def test_a_type_without_parameters_says_so() -> None:
    assert block(show_type(f"{HERE}Evaluator"), "Parameters") == ["none"]


def test_a_type_beside_the_working_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # forgotten again after the test
    Path("nodes_to_show.py").write_text(
        '"""One node."""\nimport flowrl\nclass Mine(flowrl.Node):\n    """Mine."""\n'
    )
    assert show_type("nodes_to_show:Mine").startswith(
        "nodes_to_show:Mine (node): One node.\n  Mine."
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [("lerner", "did you mean 'learner'?"), ("dqnn", "did you mean 'dqn'?")],
)
def test_an_unknown_type_is_refused_with_the_most_similar_name(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        show_type(name)
    assert str(error.value) == (
        f"nodes: there is no type '{name}'; {hint} (your own: 'package.module:Class')"
    )


OWN_PARTS = """
from functools import partial
from gymnasium import Env
from flowrl import param
from flowrl.nodes import Dqn
from flowrl.nodes.learners.hook import Hook
from flowrl.nodes.models.layers import Layer
from flowrl.nodes.reward_model import RewardModel
from flowrl.nodes.envs.wrappers.wrapper import Wrapper


class Mine(Dqn):
    \"\"\"A policy of mine.

    It learns:
        slowly.
    \"\"\"

    reads = ("obs", "action", "reward")
    on_policy = True

    class Config(Dqn.Config):
        caution: float = param(0.5, "how careful it is", ge=0, le=1)


class Watch(Hook):
    "A hook."


class Square(Layer):
    "A layer."


class Flip(Wrapper):
    "A wrapper."


class Curious(RewardModel):
    "A reward model."

    reads = ("obs", "reward")


class Maze(Env):
    def __init__(self, size: int, *, walls: "list[int] | None" = None, **more): ...


def bonus(steps):
    "One for each step."


some, NUMBER = partial(bonus, 3), 3
"""


@pytest.fixture
def own_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module `own_parts` in the working folder."""
    monkeypatch.chdir(tmp_path)
    Path("own_parts.py").write_text(OWN_PARTS)


@pytest.mark.usefixtures("own_parts")
def test_a_policy_of_ones_own_is_shown_like_a_bundled_one() -> None:
    text = show_type("own_parts:Mine")
    assert text.startswith(
        "own_parts:Mine (policy): A policy of mine.\n\n  It learns:\n      slowly.\n  own_parts:Mine\n"
    )
    assert block(text, "Needs") == [
        "actions one of n",
        "columns obs, action, reward",
        "rows of the newest weights",
    ]
    *inherited, own = block(text, "Parameters")
    assert own == "caution float = 0.5 0 to 1 how careful it is"
    assert inherited == block(show_type("dqn"), "Parameters")


@pytest.mark.usefixtures("own_parts")
@pytest.mark.parametrize(
    ("name", "heading"),
    [
        ("Watch", "(hook): A hook."),
        ("Square", "(layer): A layer."),
        ("Flip", "(wrapper): A wrapper."),
        ("Curious", "(node): A reward model."),
        ("Maze", "(class): it has no docstring"),
        ("bonus", "(function): One for each step."),
        ("some", "(function): One for each step."),
    ],
)
def test_whatever_a_graph_names_by_its_import_path_is_shown(name: str, heading: str) -> None:
    assert show_type(f"own_parts:{name}").startswith(f"own_parts:{name} {heading}\n")


@pytest.mark.usefixtures("own_parts")
def test_the_columns_that_a_reward_model_reads_are_shown() -> None:
    assert block(show_type("own_parts:Curious"), "Needs") == ["columns reward, obs"]


@pytest.mark.usefixtures("own_parts")
def test_a_class_that_is_no_type_is_shown_with_its_arguments() -> None:
    text = show_type("own_parts:Maze")
    assert "  no type: graphs name it in a parameter that takes an import path" in text
    assert block(text, "Arguments") == [
        "size int required",
        "walls list[int] | None = None",
        "**more",
    ]


def test_a_policy_of_several_agents_says_so() -> None:
    assert block(show_type("coma"), "Needs")[0] == "env of several agents, with `agents: joint`"


@pytest.mark.usefixtures("own_parts")
@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "nowhere_at_all:Mine",
            "'nowhere_at_all:Mine': there is no module 'nowhere_at_all'; install it, or go to the folder that it is in",
        ),
        (
            "own_parts:Min",
            "'own_parts:Min': the module 'own_parts' has no 'Min'; did you mean 'Mine'?",
        ),
        (
            "own_parts:bonu",
            "'own_parts:bonu': the module 'own_parts' has no 'bonu'; did you mean 'bonus'?",
        ),
        ("own_parts:NUMBER", "'own_parts:NUMBER' is an int; name a class or a function"),
        ("own_parts:", "'own_parts:' is not an import path; write 'package.module:Class'"),
        ("own_parts.py:Mine", "'own_parts.py:Mine' is not an import path; write 'own_parts:Mine'"),
        (
            "a/own_parts.py:Mine",
            "'a/own_parts.py:Mine' is not an import path; write 'own_parts:Mine'",
        ),
        (
            "own_parts",
            "there is no type 'own_parts'; name a class or function of this module: 'own_parts:Name'",
        ),
        (
            "own_parts.py",
            "there is no type 'own_parts.py'; name a class or function of this module: 'own_parts:Name'",
        ),
        (
            "subprocess:call",
            "'subprocess:call' belongs to Python's standard library; name a class or function of a module of your "
            "own, or of an installed package",
        ),
    ],
)
def test_a_wrong_import_path_is_refused_in_words(path: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        show_type(path)
    assert str(error.value) == f"nodes: {message}"


@pytest.mark.slow
def test_showing_the_catalogue_loads_no_framework() -> None:
    code = (
        "import sys; from flowrl.render.catalogue_text import *; show_catalogue(); show_graphs(); show_type('dqn'); "
        "print([m for m in ('torch', 'gymnasium', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "int"),
        (float | None, "float | null"),
        (Literal["a", "b"], "a | b"),
        (list[int], "list[int]"),
        (dict[str, Any], "dict[str, any]"),
        (tuple[int, ...], "tuple[int, …]"),
        (list[Literal["a"]] | int, "list[a] | int"),
        (dict[str, Annotated[float | int, print]], "dict[str, float | int]"),
    ],
)
def test_types_in_words(annotation: Any, words: str) -> None:
    assert type_words(annotation) == words


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({}, ""),
        ({"ge": 1}, "≥ 1"),
        ({"gt": 0, "lt": 1}, "> 0, < 1"),
        ({"ge": 0, "le": 1}, "0 to 1"),
        ({"multiple_of": 4}, "a multiple of 4"),
    ],
)
def test_ranges_in_words(limits: dict[str, Any], words: str) -> None:
    class Ranged(Config):
        x: float = param(1.0, "a number", **limits)

    assert limits_words(Ranged.model_fields["x"]) == words


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"min_length": 1}, "not empty"),
        ({"min_length": 2, "max_length": 3}, "2 items or more, 3 items or less"),
    ],
)
def test_lengths_in_words(limits: dict[str, Any], words: str) -> None:
    class Ranged(Config):
        x: list[int] = param([1, 2], "numbers", **limits)

    assert limits_words(Ranged.model_fields["x"]) == words
