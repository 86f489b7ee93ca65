"""Times, spelling hints and errors as text."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.core.errors import (
    FlowError,
    GraphError,
    NodeError,
    Problem,
    Problems,
    RunError,
    UsageError,
    closest_word,
    spelling_hint,
)
from flowrl.core.wording import clock_text, list_text
from flowrl.graph.sections import parse_seconds


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("30s", 30.0), ("10m", 600.0), ("2h", 7200.0), ("1d", 86400.0)],
        *[("90", 90.0), ("1.5h", 5400.0), (" 3 m ", 180.0), (90, 90.0), (0.5, 0.5)],
    ],
)
def test_a_time_is_a_number_and_a_unit(text: str | float, value: float) -> None:
    assert parse_seconds(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *["", "s", "soon", "10 minutes", "1h30m", "-5s", "+5s", "0", "0s", "0.0h", ".5h", "1e3"],
        *["10M", "1_000", "５s" * 2, "9" * 400],
        *[0, -1, float("inf"), float("nan"), True, None, [], {"s": 3}],
    ],
)
def test_an_invalid_time_is_none(text: object) -> None:
    assert parse_seconds(text) is None


@given(st.integers(1, 10**9), st.sampled_from("smhd"))
def test_units_differ_by_their_factors(amount: int, unit: str) -> None:
    factor = {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit]
    assert parse_seconds(f"{amount}{unit}") == parse_seconds(amount * factor) == amount * factor


@given(st.integers(0, 10**6))
def test_a_clock_text_shows_whole_seconds(value: int) -> None:
    parts = [int(part) for part in clock_text(value + 0.9).split(":")]
    hours, minutes, rest = [0] * (3 - len(parts)) + parts
    assert hours * 3600 + minutes * 60 + rest == value
    assert rest < 60
    assert minutes < 60


# words that were meant


WORDS = ["batch_size", "gamma", "lr", "max_grad_norm", "n_sample"]


@pytest.mark.parametrize(
    ("word", "meant"),
    [("batchsize", "batch_size"), ("gama", "gamma"), ("n_samples", "n_sample"), ("lr", "lr")],
)
def test_a_misspelt_word_is_recognised(word: str, meant: str) -> None:
    assert closest_word(word, WORDS) == meant
    assert spelling_hint(word, reversed(WORDS)) == f"did you mean '{meant}'?"


def test_a_word_without_a_close_match_gets_the_list() -> None:
    assert closest_word("zzz", WORDS) is None
    assert spelling_hint("zzz", ["b", "a", "b"]) == "known: a, b"
    assert spelling_hint("zzz", []) == "there are none"


def test_a_long_list_is_truncated() -> None:
    names = [f"name_{k:02}" for k in range(13)]
    assert spelling_hint("zzz", names[:12]).endswith("name_11")
    assert spelling_hint("zzz", names).endswith("name_11, …")


@given(st.lists(st.text("abc", min_size=1, max_size=4), min_size=1), st.text("abc", max_size=4))
def test_the_hint_does_not_depend_on_the_order_of_the_words(words: list[str], word: str) -> None:
    assert spelling_hint(word, words) == spelling_hint(word, sorted(words, reverse=True))
    assert (closest_word(word, words) or words[0]) in words


def test_a_word_of_a_million_letters_takes_no_time() -> None:
    assert spelling_hint("x" * 10**6, WORDS).startswith("known: ")


# errors


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (Problem("g.yaml:3:1", "unknown key 'x'", "remove it"), "g.yaml:3:1: unknown key 'x'; remove it"),
        (Problem("g.yaml:3:1", "unknown key 'x'"), "g.yaml:3:1: unknown key 'x'"),
        (Problem("", "there is no graph"), "there is no graph"),
    ],
)  # fmt: skip
def test_a_problem_reads_where_what_and_how_to_fix_it(problem: Problem, text: str) -> None:
    assert str(problem) == text


def test_the_error_of_an_unsound_graph_has_a_line_for_each_problem() -> None:
    found = Problems()
    found.add("a:1", "one", "fix it")
    found.add("b:2", "two")
    error = GraphError(found)
    found.clear()
    assert str(error).splitlines() == ["a:1: one; fix it", "b:2: two"]
    assert len(error.problems) == 2


def test_a_node_that_failed_is_named_with_the_cause() -> None:
    cause = ZeroDivisionError("no more")
    error = NodeError("c#1", "firing 3 (round 2)", cause)
    assert str(error) == "node 'c#1', firing 3 (round 2): ZeroDivisionError: no more"
    assert error.__cause__ is cause
    assert (error.node, error.doing) == ("c#1", "firing 3 (round 2)")


def test_all_errors_of_flowrl_are_flow_errors() -> None:
    for kind in (GraphError, UsageError, NodeError, RunError):
        assert issubclass(kind, FlowError)
        others = {GraphError, UsageError, NodeError, RunError} - {kind}
        assert not any(issubclass(kind, other) for other in others)


def test_a_usage_error_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(UsageError("--steps 0: a number from 1")))
    assert (type(error), str(error)) == (UsageError, "--steps 0: a number from 1")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "none"), (1, "0"), (3, "0, 1, 2"), (4, "0, 1, 2 and 1 more")]
)
def test_a_long_list_is_cut(count: int, text: str) -> None:
    assert list_text(range(count), most=3) == text
