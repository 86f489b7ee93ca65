"""With what they report at the cut, nodes report everything up to the cut and nothing beyond, in every placement."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl.core.context import Context
from flowrl.core.errors import NodeError
from flowrl.core.node import Node
from flowrl.core.ports import In
from flowrl.runs.folder import METRICS_FILE, read_jsonl
from tests.sites.run_comparison import run_graph
from tests.toys.toy_runs import run, toy_graph

EVERY = 4
PLACEMENTS = ["threads", "r=thread", "l=thread", "c=thread,e=thread"]


class Reporter(Node):
    """Reports after every fourth firing how many tokens it took since its last report, and the rest at the cut."""

    data = In("samples")
    unsaved = ("ended",)

    def setup(self) -> None:
        self.taken = 0

    def fire(self, data: Any) -> None:
        self.taken += 1
        if self.taken == EVERY:
            self.report(self.taken)
            self.taken = 0
        self.leave()

    def leave(self) -> None:
        taken = self.taken
        self.ctx.report_at_cut((lambda: self.report(taken)) if taken else None)

    def report(self, taken: int) -> None:
        self.ctx.metrics({"taken": taken})

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self.leave()


class VerdictAtCut(Node):
    data = In("samples")

    def fire(self, data: Any) -> None:
        self.ctx.report_at_cut(lambda: self.ctx.verdict("too late"))


def graph(goal: int = 10**9, **more: Any) -> dict[str, Any]:
    nodes = {
        "c": "Source",
        "l": "Learner",
        "r": {"type": f"{__name__}:Reporter", "replicas": 2},
        "e": {"type": "Evaluator", "goal": goal},
    }
    weights = [{"l.weights -> c.weights": {"lag": 2}}, {"l.weights -> e": {"every": 2}}]
    return toy_graph(nodes, ["c -> l, r", *weights], **more)


def taken_tokens(folder: Path) -> list[int]:
    """Return how many tokens each replica has reported."""
    rows = read_jsonl(folder / METRICS_FILE)
    return [int(sum(row["taken"] for row in rows if row["node"] == key)) for key in ("r", "r#1")]


@pytest.mark.parametrize(
    ("goal", "limits"),
    [(10**9, {"train_iters": 13}), (10**9, {"steps": 45}), (22, {"rounds": 40})],
)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_everything_up_to_the_cut_is_reported_once(
    placement: str, goal: int, limits: dict[str, int], tmp_path: Path
) -> None:
    found = [
        run_graph(graph(goal), name, tmp_path / name, **limits) for name in ("serial", placement)
    ]
    assert found[0] == found[1]
    rounds = (
        found[0]["env_steps"] // 20
    )  # in which each replica takes a token, except perhaps in the last
    assert all(rounds - 1 <= taken <= rounds for taken in taken_tokens(tmp_path / "serial"))


def test_the_last_reports_come_at_the_end_with_the_firing_that_left_them(tmp_path: Path) -> None:
    run_graph(graph(), "serial", tmp_path / "run", rounds=13)
    assert taken_tokens(tmp_path / "run") == [13, 13]
    rows = [row for row in read_jsonl(tmp_path / "run" / METRICS_FILE) if "taken" in row]
    assert [(row["node"], row["firing"], row["taken"]) for row in rows[-3:]] == [
        ("r#1", 11, 4),
        ("r", 12, 1),
        ("r#1", 12, 1),
    ]


def test_a_run_that_goes_on_reports_at_its_own_cut_what_was_left(tmp_path: Path) -> None:
    whole, first = tmp_path / "whole", tmp_path / "first"
    loaded = flowrl.load(graph(snapshots={"every_rounds": 5}))
    loaded.run(train_iters=21, out=whole, quiet=True)  # cut before the firings of `r` in its round
    loaded.run(steps=200, out=first, quiet=True)
    assert taken_tokens(first) == taken_tokens(whole) == [10, 10]
    for placement in ("serial", "threads"):
        shutil.copytree(first, tmp_path / placement)
        limits = {"steps": 1000, "train_iters": 21}
        flowrl.resume(tmp_path / placement, placement=placement, quiet=True, **limits)
        assert (tmp_path / placement / METRICS_FILE).read_text() == (
            whole / METRICS_FILE
        ).read_text()


def test_a_report_at_the_cut_only_reports() -> None:
    nodes = {"c": "Source", "l": "Learner", "v": f"{__name__}:VerdictAtCut"}
    with pytest.raises(NodeError, match=r"node 'v', reporting at the cut.*have a VerdictRecord"):
        run(toy_graph(nodes, ["c -> l, v"]), rounds=2)


def test_a_service_leaves_nothing_for_the_cut() -> None:
    with pytest.raises(RuntimeError, match="let the client call report_at_cut"):
        Context("n", effect_timing="never").report_at_cut(None)
