"""What all verbs have in common: help, wrong arguments, output and exit status."""

import os
import subprocess
import sys
from argparse import _SubParsersAction
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from flowrl.cli.main import VERBS, make_parser
from tests.cli.conftest import Called, one_line

Flowrl = Callable[..., Called]

NAMES = [
    *[
        "run",
        "resume",
        "fork",
        "population",
        "check",
        "chaos",
        "draw",
        "expand",
        "diff",
        "nodes",
        "graphs",
        "schema",
        "eval",
        "export",
        "league",
        "tournament",
        "plot",
    ],
    *[
        "ps",
        "top",
        "why",
        "peek",
        "snapshot",
        "stop",
        "logs",
        "record",
        "replay",
        "host",
        "hosts",
        "new",
        "docs",
        "completion",
        "doctor",
    ],
]


def test_the_help_lists_every_verb_and_no_other(flowrl: Flowrl) -> None:
    text = flowrl("--help")[1].partition("verbs:")[2]
    listed = [
        line.split()[0] for line in text.splitlines() if line.startswith("    ") and line[4] != " "
    ]
    assert [name for name in listed if name != "VERB"] == NAMES == list(VERBS)


@pytest.mark.parametrize("verb", NAMES)
def test_every_verb_explains_each_of_its_arguments(verb: str, flowrl: Flowrl) -> None:
    status, out, err = flowrl(verb, "--help")
    assert (status, err) == (0, "")
    assert f"usage: flowrl {verb}" in out
    [verbs] = [a for a in make_parser(verb)._actions if isinstance(a, _SubParsersAction)]
    assert list(verbs.choices) == NAMES
    for action in verbs.choices[verb]._actions:
        shown = action.option_strings[-1:] or [action.metavar]
        assert shown[0] in out
        # the description of the verb explains positional arguments
        assert action.help or not action.option_strings


@pytest.mark.parametrize("verb", NAMES)
def test_an_unknown_option_exits_with_2_and_says_how_to_use_the_verb(
    verb: str, flowrl: Flowrl
) -> None:
    status, out, err = flowrl(verb, "--nonsense")
    assert (status, out) == (2, "")
    assert err.startswith(f"usage: flowrl {verb} ")
    assert f"\nflowrl {verb}: error: " in err
    assert "Traceback" not in err


@pytest.mark.parametrize("words", [("check", b"g\xff.yaml"), ("run", "g.yaml", "--out", b"r\xff")])
def test_names_that_are_no_text_are_refused(words: Sequence[str | bytes], flowrl: Flowrl) -> None:
    """Umlauts in UTF-8 are text also in a locale without them (`tests/sites/test_surroundings.py`)."""
    status, out, err = flowrl(*map(os.fsdecode, words))
    assert (status, out) == (2, "")
    assert "\\xff" in err
    assert err.endswith(": is no text in utf-8; rename it\n")


def test_a_working_folder_that_was_removed_is_named(
    flowrl: Flowrl, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "gone").mkdir()
    monkeypatch.chdir(folder / "gone")
    (folder / "gone").rmdir()
    what = "flowrl: the working folder is not there any more; change to another one\n"
    assert flowrl("graphs") == (2, "", what)


def test_a_misspelt_option_is_told_the_nearest_one(flowrl: Flowrl) -> None:
    assert flowrl("run", "g.yaml", "--sedd", "3")[2].endswith(
        "\nflowrl run: error: unknown argument '--sedd'; did you mean '--seed'?\n"
    )
    assert flowrl("run", "g.yaml", "--run-dir", "mine")[2].endswith(
        "unknown argument '--run-dir'; did you mean '--out'?\n"
    )
    assert flowrl("ps", "--timesteps", "3")[2].endswith("unknown argument '--timesteps'\n")
    assert flowrl("check", "g.yaml", "h.yaml")[2].endswith("unknown argument 'h.yaml'\n")
    assert flowrl("run", "g.yaml", "--resume")[2].endswith(
        "unknown argument '--resume'; did you mean the verb, `flowrl resume`?\n"
    )


def test_a_misspelt_verb_is_told_the_nearest_one(flowrl: Flowrl) -> None:
    status, out, err = flowrl("chekc", "g.yaml")
    assert (status, out) == (2, "")
    assert err.endswith("flowrl: error: there is no verb 'chekc'; did you mean 'check'?\n")
    assert "; known: run, resume, fork, population, check, " in flowrl("train", "g.yaml")[2]


@pytest.mark.parametrize("verb", ["run", "check", "draw", "expand"])
def test_every_verb_with_a_graph_suggests_similar_names(verb: str, flowrl: Flowrl) -> None:
    status, out, err = flowrl(verb, "cartpole_dqnn")
    assert (status, out) == (2, "")
    assert err.startswith("flowrl: cartpole_dqnn: there is no such file or bundled graph; ")
    assert "cartpole_dqn" in err.removeprefix("flowrl: cartpole_dqnn")


@pytest.mark.parametrize(("text", "value"), [("3", 3), ("1_0", 10), ("0004", 4), ("1e1", 10)])
def test_counts_are_written_as_in_a_graph(text: str, value: int, flowrl: Flowrl) -> None:
    summary = one_line(flowrl("run", "g.yaml", "--train-iters", text, "--json")[1])
    assert summary["train_iters"] == value


@pytest.mark.parametrize("text", ["0", "-3", "2.5", "1e-3", "1e30", "many", "", "³"])
def test_an_invalid_count_is_refused(text: str, flowrl: Flowrl) -> None:
    status, out, err = flowrl("run", "g.yaml", "--train-iters", text)
    assert (status, out) == (2, "")
    assert f"{text!r} is not a whole number of 1 or more" in err or "expected one argument" in err


@pytest.mark.parametrize("text", ["1.0", "-1", "²", "9223372036854775808", "seed"])
def test_an_invalid_seed_is_refused(text: str, flowrl: Flowrl) -> None:
    status, out, err = flowrl("run", "g.yaml", "--seed", text)
    assert (status, out) == (2, "")
    assert f"{text!r} is not a whole number from 0 to 2^63 - 1" in err


def test_the_largest_seed_is_taken(flowrl: Flowrl) -> None:
    words = ("run", "g.yaml", "--train-iters", "1", "--json", "--seed", str(2**63 - 1))
    assert one_line(flowrl(*words)[1])["seed"] == 2**63 - 1


def test_the_help_imports_no_verb() -> None:
    code = """
import sys
from flowrl.cli.main import make_parser
make_parser(None).format_help()
print(sorted(name for name in sys.modules if name.startswith(("flowrl.", "numpy", "pydantic"))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = [
        *["flowrl.cli", "flowrl.cli.main", "flowrl.cli.streams"],
        *["flowrl.machine", "flowrl.machine.closed_terminal", "flowrl.machine.control_groups"],
        "flowrl.machine.resource_limits",
        "flowrl.version",
    ]
    assert done.stdout == f"{expected}\n"
