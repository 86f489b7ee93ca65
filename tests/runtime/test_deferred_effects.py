"""Effects outside the run: only firings before the cut have them, in every placement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowrl.core.context import Context
from flowrl.core.errors import NodeError
from flowrl.core.records import DeferredEffect
from tests.sites.run_comparison import run_graph
from tests.toys.toy_runs import toy_graph

FILE_WRITER = "tests.sites.site_nodes:FileWriter"
PLACEMENTS = ["serial", "threads", "s=thread", "l=thread", "c=thread,e=thread"]


def graph(folder: Path, goal: int = 100, **writer: Any) -> dict[str, Any]:
    """Return a graph with file writers behind the collector and the evaluator, whose verdict may cut."""
    nodes = {
        "c": {"type": "Source", "give": 4},
        "l": "Learner",
        "s": {"type": FILE_WRITER, "path": str(folder / "s"), "replicas": 2, **writer},
        "e": {"type": "Evaluator", "goal": goal},
        "t": {"type": FILE_WRITER, "path": str(folder / "t")},
    }
    edges = ["c -> l, s", {"l.weights -> c.weights": {"lag": 2}}]
    return toy_graph(nodes, [*edges, {"l.weights -> e": {"every": 2}}, "e -> t"])


def read_lines(folder: Path) -> dict[str, list[int]]:
    """Return the lines of each file."""
    return {p.name: list(map(int, p.read_text().split())) for p in folder.iterdir() if p.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("goal", "limits"),
    [(100, {"train_iters": 13}), (100, {"rounds": 5}), (100, {"steps": 45}), (22, {"rounds": 40})],
)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_firings_beyond_the_cut_have_no_effects(
    placement: str, goal: int, limits: dict[str, int], tmp_path: Path
) -> None:
    found = []
    for name in ("serial", placement):
        folder = tmp_path / f"{len(found)}"
        folder.mkdir()
        facts = run_graph(graph(folder, goal), name, folder / "r", **limits)
        assert facts["status"] == ("solved" if goal < 100 else "finished")
        found.append(read_lines(folder))
    assert found[0] == found[1]
    assert all(lines == list(range(len(lines))) for lines in found[0].values())
    assert found[0].keys() == {"s-0", "s-1", "t-0"}


@pytest.mark.slow
def test_effects_are_committed_during_the_run(tmp_path: Path) -> None:
    """Leases limit how long effects are deferred, so earlier effects are committed before a later one fails."""
    nodes = graph(tmp_path, goal=10**9, fails_at=700)
    with pytest.raises(NodeError, match=r"committing an effect of firing 700.*no space left"):
        run_graph(nodes, "s=thread", tmp_path / "r", rounds=4000)
    assert list(range(700)) in (read_lines(tmp_path)["s-0"], read_lines(tmp_path)["s-1"])


@pytest.mark.parametrize("on_failure", ["stop", "ignore"])
def test_an_effect_that_fails_ends_the_run(on_failure: str, tmp_path: Path) -> None:
    for placement in ("serial", "s=thread"):
        nodes = graph(tmp_path, fails_at=1, on_failure=on_failure)
        with pytest.raises(NodeError, match=r"node 's(#1)?', committing an effect of firing 1"):
            run_graph(nodes, placement, tmp_path / placement, rounds=5)


def test_without_an_engine_effects_happen_at_once_and_services_have_none() -> None:
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
