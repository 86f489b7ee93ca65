"""`record` and `replay`, as a person calls them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Called

Flowrl = Callable[..., Called]


def test_a_node_is_recorded_and_replayed(flowrl: Flowrl, folder: Path) -> None:
    words = ("record", "g.yaml", "l", "--train-iters", "5", "--out", "r")
    status, out, _ = flowrl(*words, "--placement", "threads")
    assert status == 0
    assert out.splitlines()[-1].startswith("tape r/tokens.tape: ")
    assert out.splitlines()[-1].endswith(" of l.data, c.weights, e.weights")
    status, out, _ = flowrl("replay", "r/tokens.tape")
    assert status == 0
    assert out.splitlines()[-1] == "nodes that can be replayed: c, l, e"
    status, out, _ = flowrl("replay", "r/tokens.tape", "l")
    assert (status, out.splitlines()) == (
        0,
        [
            "l: 5 firings, from 0 on",
            "  l.weights -> c.weights: 5 equal",
            "  l.weights -> e.weights: 2 equal",
        ],
    )


def test_several_nodes_are_replayed_together(flowrl: Flowrl, folder: Path) -> None:
    flowrl("record", "g.yaml", "e", "--train-iters", "5", "-o", "t", "--quiet")
    status, _, error = flowrl("replay", "t", "l")
    assert (status, error) == (
        2,
        "flowrl: t: 'l' also reads l.data, which the tape does not have; record all edges of the node (flowrl record "
        "GRAPH l), or replay it with the nodes from which these edges come\n",
    )
    status, out, _ = flowrl("replay", "t", "c", "l")
    assert (status, out.splitlines()) == (
        0,
        [
            "c: 5 firings, from 0 on",
            "l: 5 firings, from 0 on",
            "  l.weights -> e.weights: 2 equal",
        ],
    )


def test_a_run_is_recorded_from_its_beginning(flowrl: Flowrl, folder: Path) -> None:
    flowrl("run", "g.yaml", "--train-iters", "5", "--out", "r", "--quiet")
    status, out, _ = flowrl("record", "r", "l", "-o", "t", "--out", "s", "--quiet")
    assert (status, out) == (0, "")
    assert flowrl("replay", "t", "c")[0] == 0
    status, _, error = flowrl("record", "r", "l", "-o", "t")
    assert status == 2
    assert "t: it exists already; name another file with -o, or remove it" in error


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("r", "l", "--set", "c.give=2"), "--set and --seed would make another run of it"),
        (("g.yaml", "l", "--at", "3"), "--at is for a run, which has snapshots"),
        (("g.yaml", "k"), "k: g has no such edge to record"),
        (("r", "l", "--at", "3"), "it has no snapshot after 3 rounds; it has none at all"),
    ],
)
def test_wrong_arguments_are_told(words: tuple[str, ...], told: str, flowrl: Flowrl) -> None:
    flowrl("run", "g.yaml", "--train-iters", "3", "--out", "r", "--quiet")
    status, _, error = flowrl("record", *words)
    assert status == 2
    assert told in error


def test_what_is_no_tape_takes_no_node(flowrl: Flowrl, folder: Path) -> None:
    status, _, error = flowrl("replay", "g.yaml", "l")
    assert (status, error) == (
        2,
        "flowrl: g.yaml: is no tape, so NODE has no meaning; leave it out\n",
    )


def test_only_the_file_is_required_of_replay(flowrl: Flowrl) -> None:
    status, _, err = flowrl("replay")
    assert status == 2
    assert err.endswith("the following arguments are required: FILE\n")


@pytest.mark.slow
def test_a_tape_that_was_cut_is_replayed_with_a_note(flowrl: Flowrl, folder: Path) -> None:
    flowrl("record", "g.yaml", "l", "--train-iters", "5", "-o", "t", "--quiet")
    assert flowrl("replay", "t", "l")[2] == ""
    (folder / "cut").write_bytes((folder / "t").read_bytes()[:-8])
    status, out, err = flowrl("replay", "cut", "l")
    assert status == 0
    assert "l: 5 firings" in out
    assert err.startswith("note: the tape has no end: its run was killed, has failed or is active")


def test_a_tape_in_no_folder_is_refused_before_the_run_begins(flowrl: Flowrl, folder: Path) -> None:
    status, out, err = flowrl("record", "g.yaml", "l", "-o", "none/t.tape", "--out", "r")
    message = (
        "flowrl: none/t.tape: there is no folder none; make it, or name another file with -o\n"
    )
    assert (status, out, err) == (2, "", message)
    assert not (folder / "r").exists()


@pytest.mark.parametrize(
    "words", [("record", "cartpole_dqm", "l"), ("diff", "g.yaml", "cartpole_dqm")]
)
def test_a_word_that_is_no_run_may_be_a_misspelt_graph(
    words: tuple[str, ...], flowrl: Flowrl
) -> None:
    status, _, err = flowrl(*words)
    assert status == 2
    assert err.startswith("flowrl: cartpole_dqm: there is no such run here; ")
    assert err.endswith("; or did you mean the graph 'cartpole_dqn'?\n")
