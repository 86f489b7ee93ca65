"""Hashes of all that flows, and the first token in which two runs differ."""

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
from flowrl.runs.token_file import NAME, Tokens, Way
from flowrl.runtime.token_hashing import TokenHash, digest_of
from tests.sites.test_same_bits import GRAPHS
from tests.toys.running import tree
from tests.toys.toy_nodes import table


class Chance(Node):
    """Hands its token on; in one firing, one that depends on chance."""

    data = In("samples")
    out = Out("samples")

    class Config(Config):
        firing: int = param(7, "the firing in which it is left to chance; -1: none")

    def setup(self) -> None:
        self.fired = 0

    def fire(self, data: Batch) -> Batch:
        self.fired += 1
        if self.fired - 1 == self.config.firing:
            return table(int.from_bytes(os.urandom(4), "little"))
        return data


def hashed(
    graph: Mapping[str, Any], out: Path, placement: str = "serial", seed: int = 0, **limits: Any
) -> Path:
    """The folder of a run with hashes."""
    checked = check(load_data(graph))
    Run(checked, seed=seed, placement=placement, out=out, limits=Limits(**limits),
        hash_tokens=True).run()  # fmt: skip
    return out


def read(folder: Path) -> tuple[list[Way], list[TokenHash]]:
    """What a run has written."""
    with closing(Tokens(folder)) as tokens:
        return tokens.ways, list(tokens)


def chance(firing: int = 7) -> dict[str, Any]:
    """A graph with something nondeterministic between its collector and its learner."""
    node = {"type": "tests.runs.test_token_file:Chance", "firing": firing}
    return tree({"c": "Source", "x": node, "r": "Relay", "l": "Learner"}, ["c -> x -> r -> l"])


# the file


@pytest.mark.parametrize("name", GRAPHS)
def test_the_file_is_the_same_in_every_placement(name: str, tmp_path: Path) -> None:
    serial = hashed(GRAPHS[name], tmp_path / "a", rounds=7)
    threads = hashed(GRAPHS[name], tmp_path / "b", "threads", rounds=7)
    assert (serial / NAME).read_bytes() == (threads / NAME).read_bytes()
    assert len(read(serial)[1]) >= 7
    assert diff_tokens(serial, threads).startswith("tokens: all ")


@pytest.mark.parametrize("limits", [{"train_iters": 5}, {"steps": 65}])
def test_the_file_ends_where_the_run_was_cut(limits: dict[str, int], tmp_path: Path) -> None:
    for name in ("two judges", "feedback", "pairs"):
        serial = hashed(GRAPHS[name], tmp_path / f"{name}-a", **limits)
        threads = hashed(GRAPHS[name], tmp_path / f"{name}-b", "threads", **limits)
        assert (serial / NAME).read_bytes() == (threads / NAME).read_bytes(), name


@pytest.mark.slow
def test_the_file_is_the_same_in_processes(tmp_path: Path) -> None:
    serial = hashed(GRAPHS["feedback"], tmp_path / "a", rounds=7)
    processes = hashed(GRAPHS["feedback"], tmp_path / "b", "processes", rounds=7)
    assert (serial / NAME).read_bytes() == (processes / NAME).read_bytes()


def test_nothing_is_written_unless_it_is_asked_for(tmp_path: Path) -> None:
    Run(check(load_data(chance(-1))), out=tmp_path / "r", limits=Limits(rounds=2)).run()
    assert not (tmp_path / "r" / NAME).exists()


def test_every_token_and_every_version_seen_has_its_place(tmp_path: Path) -> None:
    graph = tree({"c": "Source", "l": "Learner"}, ["c -> l", "l.weights -> c.weights"])
    ways, tokens = read(hashed(graph, tmp_path / "r", rounds=3))
    assert [way.name for way in ways] == ["c.data -> l.data", "l.weights -> c.weights"]
    found = [(h.position, ways[h.way].kind, h.version) for h in tokens]
    assert found == [
        ((0, 0, 0, 0), "state", 0), ((0, 0, 0, 0), "stream", -1),
        ((1, 0, 0, 1), "state", 1), ((1, 0, 0, 1), "stream", -1),
        ((2, 0, 0, 2), "state", 2), ((2, 0, 0, 2), "stream", -1),
    ]  # fmt: skip


# the difference


@pytest.mark.parametrize("placement", ["serial", "threads"])
def test_what_is_left_to_chance_is_named_with_its_node_and_firing(
    placement: str, tmp_path: Path
) -> None:
    a = hashed(chance(), tmp_path / "a", rounds=12)
    b = hashed(chance(), tmp_path / "b", placement, rounds=12)
    assert diff_tokens(a, b) == (
        "tokens: the first that differs is token 7 of x.out -> r.data, from firing 7 of x (round 7)\n"
        "  22 before it are equal"
    )


def test_a_learner_that_differs_is_named_by_its_version(tmp_path: Path) -> None:
    """Its seed is another: but what differs first is what its weights were made as."""
    graph = tree({"c": "Source", "l": "Learner"}, ["c -> l", "l.weights -> c.weights"])
    a = hashed(graph, tmp_path / "a", rounds=6)
    b = hashed(graph, tmp_path / "b", rounds=6, seed=1)
    told = diff_tokens(a, b)
    assert told.startswith("the seeds: 0 -> 1\n")


def test_a_run_that_ended_earlier_is_told_as_such(tmp_path: Path) -> None:
    a = hashed(chance(-1), tmp_path / "a", rounds=12)
    b = hashed(chance(-1), tmp_path / "b", rounds=4)
    told = "token 4 of c.data -> x.data, from firing 4 of c (round 4)"
    ended = f"tokens: all 12 are equal as far as {b} goes; it ended earlier: the other goes on with {told}"
    assert diff_tokens(a, b) == diff_tokens(b, a) == ended


def test_graphs_that_differ_are_compared_where_they_are_alike(tmp_path: Path) -> None:
    short = tree({"c": "Source", "l": "Learner", "d": "Drain"}, ["c -> l", "c -> d"])
    long = tree(
        {"c": "Source", "r": "Relay", "l": "Learner", "d": "Drain"}, ["c -> r -> l", "c -> d"]
    )
    a, b = hashed(short, tmp_path / "a", rounds=5), hashed(long, tmp_path / "b", rounds=5)
    assert diff_tokens(a, b) == (
        "tokens: the ways differ (c.data -> l.data, c.data -> r.data, r.out -> l.data only in one); "
        "those in both are compared\n  all 5 are equal"
    )
    long["nodes"]["c"]["steps"] = 9
    c = hashed(long, tmp_path / "c", rounds=5)
    told = "the first that differs is token 0 of c.data -> d.data, from firing 0 of c (round 0)"
    assert diff_tokens(a, c).splitlines()[1] == f"  {told}"


def test_a_run_without_hashes_is_told_as_such(tmp_path: Path) -> None:
    a = hashed(chance(-1), tmp_path / "a", rounds=2)
    said = f"tokens: not recorded in {tmp_path}; run both again with --hash-tokens"
    assert diff_tokens(a, tmp_path) == said


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x93\x01", b"\x90"])
def test_a_file_of_something_else_is_refused(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(damage)
    with pytest.raises(RunError, match=r"tokens\.bin: is "):
        Tokens(tmp_path)


def test_a_file_that_was_cut_short_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = hashed(chance(-1), tmp_path / "a", rounds=4) / NAME
    path.write_bytes(path.read_bytes()[:-3])
    assert len(read(tmp_path / "a")[1]) == 11


# digests


def test_what_differs_in_anything_has_another_digest() -> None:
    a = np.arange(6, dtype=np.float32)
    values: list[Any] = [
        a, a.astype(np.float64), a.reshape(2, 3), a + 1, a[:5], Batch({"a": a}), Batch({"b": a}),
        Batch({"a": a, "b": a}), State({"a": a}), State({"a": a}, {"x": 1.0}), [a], [a, a], [[a], a],
        {"a": a}, 1, 1.0, True, "1", b"1", None, float("nan"), 0.0, -0.0, np.int64(1), np.int32(1), [], {},
        ["ab", "c"], ["a", "bc"],
    ]  # fmt: skip
    digests = [digest_of(value, EMPTY_CLOCK) for value in values]
    assert len(set(digests)) == len(values)
    assert digests == [digest_of(value, EMPTY_CLOCK) for value in values]


def test_a_copy_in_another_order_of_memory_has_the_same_digest() -> None:
    a = np.arange(6.0).reshape(2, 3)
    assert digest_of(np.asfortranarray(a), EMPTY_CLOCK) == digest_of(a, EMPTY_CLOCK)
    assert digest_of((1, 2), EMPTY_CLOCK) == digest_of(
        [1, 2], EMPTY_CLOCK
    )  # a socket makes it a list
    assert digest_of(a, EMPTY_CLOCK.add("n", 1)) != digest_of(a, EMPTY_CLOCK)
