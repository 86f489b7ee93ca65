"""What nodes do outside of the run: only what counts is done, wherever they are, and however the run ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowrl.core.context import Context, DeferredEffect
from flowrl.core.errors import NodeError
from tests.sites.comparing import ran
from tests.toys.running import tree

SCRIBE = "tests.sites.site_nodes:Scribe"
PLACEMENTS = ["serial", "threads", "s=thread", "l=thread", "c=thread,e=thread"]


def graph(folder: Path, goal: int = 100, **scribe: Any) -> dict[str, Any]:
    """Scribes behind the collector, the learner's data and the judge; the judge may cut."""
    nodes = {
        "c": {"type": "Source", "give": 4},
        "l": "Learner",
        "s": {"type": SCRIBE, "path": str(folder / "s"), "replicas": 2, **scribe},
        "e": {"type": "Judge", "goal": goal},
        "t": {"type": SCRIBE, "path": str(folder / "t")},
    }
    edges = ["c -> l, s", {"l.weights -> c.weights": {"lag": 2}}]
    return tree(nodes, [*edges, {"l.weights -> e": {"every": 2}}, "e -> t"])


def written(folder: Path) -> dict[str, list[int]]:
    """The lines of each file."""
    return {p.name: list(map(int, p.read_text().split())) for p in folder.iterdir() if p.is_file()}


@pytest.mark.parametrize(
    ("goal", "limits"),
    [(100, {"train_iters": 13}), (100, {"rounds": 5}), (100, {"steps": 45}), (22, {"rounds": 40})],
)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_what_lies_beyond_the_cut_leaves_nothing_outside(
    placement: str, goal: int, limits: dict[str, int], tmp_path: Path
) -> None:
    found = []
    for name in ("serial", placement):
        there = tmp_path / f"{len(found)}"
        there.mkdir()
        facts = ran(graph(there, goal), name, there / "r", **limits)
        assert facts["status"] == ("solved" if goal < 100 else "finished")
        found.append(written(there))
    assert found[0] == found[1]
    assert all(lines == list(range(len(lines))) for lines in found[0].values())
    assert found[0].keys() == {"s-0", "s-1", "t-0"}


def test_it_is_done_while_the_run_goes_on(tmp_path: Path) -> None:
    """What is held back is bounded by what sites may be ahead: a later failure finds it done."""
    nodes = graph(tmp_path, goal=10**9, fails_at=700)
    with pytest.raises(NodeError, match=r"committing an effect of firing 700.*no space left"):
        ran(nodes, "s=thread", tmp_path / "r", rounds=4000)
    assert list(range(700)) in (written(tmp_path)["s-0"], written(tmp_path)["s-1"])


@pytest.mark.parametrize("on_failure", ["stop", "ignore"])
def test_what_fails_there_ends_the_run(on_failure: str, tmp_path: Path) -> None:
    for placement in ("serial", "s=thread"):
        nodes = graph(tmp_path, fails_at=1, on_failure=on_failure)
        with pytest.raises(NodeError, match=r"node 's(#1)?', committing an effect of firing 1"):
            ran(nodes, placement, tmp_path / placement, rounds=5)


def test_by_hand_it_is_done_at_once_and_a_service_may_not() -> None:
    done: list[int] = []
    Context("n").on_commit(lambda: done.append(1))
    assert done == [1]
    later = Context("n", effect_timing="later")
    later.on_commit(lambda: done.append(2))
    assert done == [1]
    [record] = later.take_records()
    assert isinstance(record, DeferredEffect)
    with pytest.raises(RuntimeError, match="let the client call on_commit"):
        Context("n", effect_timing="never").on_commit(lambda: done.append(3))
