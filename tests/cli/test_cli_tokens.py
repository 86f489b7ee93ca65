"""`run --hash-tokens` and `diff RUN RUN`, as a person calls them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Called, write

Flowrl = Callable[..., Called]

RANDOM_ONCE = {"x": {"type": "tests.runs.test_token_file:RandomOnce", "firing": 7}}


def test_diff_of_two_runs_names_the_first_token_that_differs(flowrl: Flowrl, folder: Path) -> None:
    write(folder / "x.yaml", {**RANDOM_ONCE, "d": "Drain"}, ["c -> x -> d"])
    for out, placement in (("r", "serial"), ("s", "threads")):
        words = ("--out", out, "--placement", placement, "--train-iters", "9", "--hash-tokens")
        assert flowrl("run", "x.yaml", "--quiet", *words)[0] == 0
    status, out, _ = flowrl("diff", "r", "s")
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "graphs: no difference"
    assert lines[1].endswith(", the same")  # the learner sees nothing of it
    assert lines[2] == (
        "tokens: the first that differs is token 7 of x.out -> d.data, from firing 7 of x (round 7)"
    )


def test_diff_says_where_hashes_are_missing(flowrl: Flowrl, folder: Path) -> None:
    flowrl("run", "g.yaml", "--quiet", "--train-iters", "3", "--out", "r", "--hash-tokens")
    flowrl("run", "g.yaml", "--quiet", "--train-iters", "3", "--out", "s")
    out = flowrl("diff", "r", "s")[1]
    assert out.splitlines()[-1] == "tokens: not recorded in s; run both again with --hash-tokens"
    flowrl("run", "g.yaml", "--quiet", "--train-iters", "3", "--out", "t")
    first, second = flowrl("diff", "s", "t")[1].splitlines()
    assert first == "graphs: no difference"
    assert second.endswith(", the same")
