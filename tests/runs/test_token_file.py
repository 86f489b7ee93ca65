"""Token hashes: the file, the first token in which two runs differ, and the digests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.checks.check import check
from flowrl.core.batch import Batch
from flowrl.core.config import Config, param
from flowrl.core.errors import RunError
from flowrl.core.node import Node
from flowrl.core.ports import In, Out
from flowrl.core.state import EMPTY_CLOCK, State
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.runs.run import Run
from flowrl.runs.token_diff import diff_tokens
from flowrl.runs.token_file import TOKEN_FILE, NamedPair, TokenReader
from flowrl.runtime.token_hashing import TokenHash, token_digest
from tests.sites.test_same_bits import GRAPHS
from tests.toys.toy_nodes import table
from tests.toys.toy_runs import toy_graph


class RandomOnce(Node):
    """Passes its token on. In one firing it passes a random one instead."""

    data = In("samples")
    out = Out("samples")

    class Config(Config):
        firing: int = param(7, "the firing with the random token; -1: none")

    def setup(self) -> None:
        self.fired = 0

    def fire(self, data: Batch) -> Batch:
        self.fired += 1
        if self.fired - 1 == self.config.firing:
            return table(int.from_bytes(os.urandom(4), "little"))
        return data


def run_with_hashes(
    graph: Mapping[str, Any], out: Path, placement: str = "serial", seed: int = 0, **limits: Any
) -> Path:
    """Run a graph with `--hash-tokens`, and return the run's folder."""
    checked = check(load_data(graph))
    Run(checked, seed=seed, placement=placement, out=out, limits=Limits(**limits),
        hash_tokens=True).run()  # fmt: skip
    return out


def read_hashes(folder: Path) -> tuple[list[NamedPair], list[TokenHash]]:
    """The replica pairs and hashes in a run's folder."""
    with closing(TokenReader(folder)) as tokens:
        return tokens.pairs, list(tokens)


def graph_with_random_node(firing: int = 7) -> dict[str, Any]:
    """A graph with something nondeterministic between its collector and its learner."""
    node = {"type": "tests.runs.test_token_file:RandomOnce", "firing": firing}
    return toy_graph({"c": "Source", "x": node, "r": "Relay", "l": "Learner"}, ["c -> x -> r -> l"])


# the file


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_the_file_is_the_same_in_every_placement(name: str, tmp_path: Path) -> None:
    serial = run_with_hashes(GRAPHS[name], tmp_path / "a", rounds=7)
    threads = run_with_hashes(GRAPHS[name], tmp_path / "b", "threads", rounds=7)
    assert (serial / TOKEN_FILE).read_bytes() == (threads / TOKEN_FILE).read_bytes()
    assert len(read_hashes(serial)[1]) >= 7
    assert diff_tokens(serial, threads).startswith("tokens: all ")


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{"train_iters": 5}, {"steps": 65}])
def test_the_file_ends_where_the_run_was_cut(limits: dict[str, int], tmp_path: Path) -> None:
    for name in ("two evaluators", "feedback", "pairs"):
        serial = run_with_hashes(GRAPHS[name], tmp_path / f"{name}-a", **limits)
        threads = run_with_hashes(GRAPHS[name], tmp_path / f"{name}-b", "threads", **limits)
        assert (serial / TOKEN_FILE).read_bytes() == (threads / TOKEN_FILE).read_bytes(), name


@pytest.mark.slow
def test_the_file_is_the_same_in_processes(tmp_path: Path) -> None:
    serial = run_with_hashes(GRAPHS["feedback"], tmp_path / "a", rounds=7)
    processes = run_with_hashes(GRAPHS["feedback"], tmp_path / "b", "processes", rounds=7)
    assert (serial / TOKEN_FILE).read_bytes() == (processes / TOKEN_FILE).read_bytes()


def test_without_hash_tokens_no_file_is_written(tmp_path: Path) -> None:
    Run(
        check(load_data(graph_with_random_node(-1))), out=tmp_path / "r", limits=Limits(rounds=2)
    ).run()
    assert not (tmp_path / "r" / TOKEN_FILE).exists()


def test_every_token_and_every_version_that_is_read_has_a_position(tmp_path: Path) -> None:
    graph = toy_graph({"c": "Source", "l": "Learner"}, ["c -> l", "l.weights -> c.weights"])
    pairs, tokens = read_hashes(run_with_hashes(graph, tmp_path / "r", rounds=3))
    assert [pair.name for pair in pairs] == ["c.data -> l.data", "l.weights -> c.weights"]
    found = [(h.position, pairs[h.pair].kind, h.version) for h in tokens]
    assert found == [
        ((0, 0, 0, 0), "state", 0), ((0, 0, 0, 0), "stream", -1),
        ((1, 0, 0, 1), "state", 1), ((1, 0, 0, 1), "stream", -1),
        ((2, 0, 0, 2), "state", 2), ((2, 0, 0, 2), "stream", -1),
    ]  # fmt: skip


# the difference


@pytest.mark.parametrize("placement", ["serial", "threads"])
def test_a_random_token_is_named_with_its_node_and_firing(placement: str, tmp_path: Path) -> None:
    a = run_with_hashes(graph_with_random_node(), tmp_path / "a", rounds=12)
    b = run_with_hashes(graph_with_random_node(), tmp_path / "b", placement, rounds=12)
    assert diff_tokens(a, b) == (
        "tokens: the first that differs is token 7 of x.out -> r.data, from firing 7 of x (round 7)\n"
        "  22 before it are equal"
    )


def test_a_learner_that_differs_is_named_by_its_version(tmp_path: Path) -> None:
    """The seeds differ, so the first difference is the initial version of the weights."""
    graph = toy_graph({"c": "Source", "l": "Learner"}, ["c -> l", "l.weights -> c.weights"])
    a = run_with_hashes(graph, tmp_path / "a", rounds=6)
    b = run_with_hashes(graph, tmp_path / "b", rounds=6, seed=1)
    assert diff_tokens(a, b).startswith("the seeds: 0 -> 1\n")


def test_a_run_that_ended_earlier_is_reported_as_such(tmp_path: Path) -> None:
    a = run_with_hashes(graph_with_random_node(-1), tmp_path / "a", rounds=12)
    b = run_with_hashes(graph_with_random_node(-1), tmp_path / "b", rounds=4)
    following = "token 4 of c.data -> x.data, from firing 4 of c (round 4)"
    ended = (
        f"tokens: all 12 are equal up to the end of {b}, which ended earlier: "
        f"the other continues with {following}"
    )
    assert diff_tokens(a, b) == diff_tokens(b, a) == ended


def test_graphs_that_differ_are_compared_on_the_edges_of_both(tmp_path: Path) -> None:
    short = toy_graph({"c": "Source", "l": "Learner", "d": "Drain"}, ["c -> l", "c -> d"])
    long = toy_graph(
        {"c": "Source", "r": "Relay", "l": "Learner", "d": "Drain"}, ["c -> r -> l", "c -> d"]
    )
    a, b = (
        run_with_hashes(short, tmp_path / "a", rounds=5),
        run_with_hashes(long, tmp_path / "b", rounds=5),
    )
    assert diff_tokens(a, b) == (
        "tokens: the edges differ (c.data -> l.data, c.data -> r.data, r.out -> l.data only in one run); "
        "those in both are compared\n  all 5 are equal"
    )
    long["nodes"]["c"]["steps"] = 9
    c = run_with_hashes(long, tmp_path / "c", rounds=5)
    differs = "the first that differs is token 0 of c.data -> d.data, from firing 0 of c (round 0)"
    assert diff_tokens(a, c).splitlines()[1] == f"  {differs}"


def test_a_run_without_hashes_is_reported_as_such(tmp_path: Path) -> None:
    a = run_with_hashes(graph_with_random_node(-1), tmp_path / "a", rounds=2)
    expected = f"tokens: not recorded in {tmp_path}; run both again with --hash-tokens"
    assert diff_tokens(a, tmp_path) == expected


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x93\x01", b"\x90"])
def test_a_file_with_other_content_is_refused(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / TOKEN_FILE).write_bytes(damage)
    with pytest.raises(RunError, match=r"tokens\.bin: is "):
        TokenReader(tmp_path)


def test_a_truncated_file_is_read_up_to_its_last_complete_value(tmp_path: Path) -> None:
    path = run_with_hashes(graph_with_random_node(-1), tmp_path / "a", rounds=4) / TOKEN_FILE
    path.write_bytes(path.read_bytes()[:-3])
    assert len(read_hashes(tmp_path / "a")[1]) == 11


# digests


def test_values_that_differ_in_anything_have_different_digests() -> None:
    a = np.arange(6, dtype=np.float32)
    values: list[Any] = [
        a, a.astype(np.float64), a.reshape(2, 3), a + 1, a[:5], Batch({"a": a}), Batch({"b": a}),
        Batch({"a": a, "b": a}), State({"a": a}), State({"a": a}, {"x": 1.0}), [a], [a, a], [[a], a],
        {"a": a}, 1, 1.0, True, "1", b"1", None, float("nan"), 0.0, -0.0, np.int64(1), np.int32(1), [], {},
        ["ab", "c"], ["a", "bc"],
    ]  # fmt: skip
    digests = [token_digest(value, EMPTY_CLOCK) for value in values]
    assert len(set(digests)) == len(values)
    assert digests == [token_digest(value, EMPTY_CLOCK) for value in values]


def test_a_copy_with_another_memory_order_has_the_same_digest() -> None:
    a = np.arange(6.0).reshape(2, 3)
    assert token_digest(np.asfortranarray(a), EMPTY_CLOCK) == token_digest(a, EMPTY_CLOCK)
    # msgpack turns tuples into lists.
    assert token_digest((1, 2), EMPTY_CLOCK) == token_digest([1, 2], EMPTY_CLOCK)
    assert token_digest(a, EMPTY_CLOCK.add("n", 1)) != token_digest(a, EMPTY_CLOCK)
