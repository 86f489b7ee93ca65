"""Learning curves of run folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.core.errors import RunError, UsageError
from flowrl.runs.plot import Curve, bands_of, curves_of, plot

Points = list[tuple[int, Any]]


def _played(node: str, role: str, steps: int, value: Any) -> dict[str, Any]:
    return {"node": node, "role": role, "firing": 1, "env_steps": steps, "return_mean": value}


def a_run(folder: Path, points: Points, graph: str = "cartpole", end: str = "\n") -> Path:
    """A run's folder with an evaluator's rows between those of a learner and a collector."""
    folder.mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    for steps, value in points:
        rows.append({"node": "learner", "firing": 1, "env_steps": steps, "loss": 0.5})
        rows.append(_played("collector", "collector", steps - 1, -100))
        rows.append(_played("evaluator", "evaluator", steps, value))
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + end)
    (folder / "summary.json").write_text(json.dumps({"graph": graph}))
    return folder


def colours(path: Path) -> set[tuple[int, ...]]:
    """The colours of a picture, roughly."""
    from matplotlib.image import imread

    pixels = (imread(path)[:, :, :3].reshape(-1, 3) * 5).round().astype(int)
    return {(r, g, b) for r, g, b in np.unique(pixels, axis=0).tolist()}


BLUE, ORANGE = (1, 2, 4), (5, 2, 0)


def test_a_curve_is_what_the_evaluator_measured(tmp_path: Path) -> None:
    run = a_run(tmp_path / "a", [(100, 9.5), (200, 20)])
    assert curves_of(run) == [Curve("cartpole", ((100, 9.5), (200, 20)))]


def test_each_of_several_evaluators_has_a_curve_of_its_own(tmp_path: Path) -> None:
    run = a_run(tmp_path / "a", [(100, 9), (200, 20)])
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(_played("big_maze", "evaluator", 150, 3)) + "\n")
    assert curves_of(run) == [
        Curve("cartpole: big_maze", ((150, 3),)),
        Curve("cartpole: evaluator", ((100, 9), (200, 20))),
    ]


def test_evaluations_without_a_number_are_left_out(tmp_path: Path) -> None:
    run = a_run(tmp_path / "a", [(100, "nan"), (200, 20), (300, "inf"), (400, True)])
    assert curves_of(run)[0].points == ((200, 20),)


@pytest.mark.parametrize("end", ["", '\n{"node": "evaluator", "env_st', '\n{"env_steps": 9}\n\n'])
def test_a_run_that_is_still_writing_can_be_drawn(tmp_path: Path, end: str) -> None:
    run = a_run(tmp_path / "a", [(100, 9), (200, 20)], end=end)
    assert curves_of(run)[0].points == ((100, 9), (200, 20))


def test_a_last_line_cut_within_a_letter_can_be_drawn(tmp_path: Path) -> None:
    run = a_run(tmp_path / "a", [(100, 9)])
    with (run / "metrics.jsonl").open("ab") as file:
        file.write('{"node": "größ'.encode()[:-1])
    assert curves_of(run)[0].points == ((100, 9),)


def test_a_run_without_a_summary_is_named_by_its_resolved_graph(tmp_path: Path) -> None:
    run = a_run(tmp_path / "some-run", [(100, 9)])
    (run / "summary.json").unlink()
    assert curves_of(run)[0].graph == "some-run"
    (run / "graph.yaml").write_text("# cartpole_dqn, resolved: this file alone repeats the run\n")
    assert curves_of(run)[0].graph == "cartpole_dqn"


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        plot([tmp_path / "none"], tmp_path / "x.png")
    assert str(error.value) == (
        f"{tmp_path / 'none'}: there is no such folder; list the runs with 'ls runs'"
    )


def test_a_folder_without_metrics_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        plot([tmp_path], tmp_path / "x.png")
    assert str(error.value) == (
        f"{tmp_path}: has no metrics.jsonl; give the folder of a run that has begun to report"
    )


def test_a_run_without_an_evaluation_is_told(tmp_path: Path) -> None:
    run = a_run(tmp_path / "a", [(100, "nan")])
    with pytest.raises(RunError) as error:
        plot([run], tmp_path / "x.png")
    assert str(error.value) == (
        f"{run}: holds no evaluation yet; wait for the first, or add an evaluator to the graph"
    )


def test_a_damaged_line_in_the_middle_is_told_with_its_number(tmp_path: Path) -> None:
    run = a_run(tmp_path / "a", [(100, 9)], end="\n{oh\n{}\n")
    with pytest.raises(RunError) as error:
        curves_of(run)
    assert str(error.value) == (f"{run / 'metrics.jsonl'}:4: is not JSON; the file is damaged")


def test_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        plot([], tmp_path / "x.png")
    assert str(error.value) == (
        "plot: no run is given; name run folders, such as runs/cartpole_dqn-…"
    )


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    out = tmp_path / "none" / "x.png"
    with pytest.raises(RunError) as error:
        plot([a_run(tmp_path / "a", [(1, 1)])], out)
    assert str(error.value) == f"{out}: cannot be written: No such file or directory"


# several runs


def test_runs_of_a_graph_are_one_band_of_median_least_and_most() -> None:
    values = (1.0, 5.0, 3.0)
    [band] = bands_of(Curve("g", ((10, v), (20, 2 * v))) for v in values)
    assert (band.graph, band.runs, band.steps) == ("g", 3, (10, 20))
    assert (band.middle, band.least, band.most) == ((3.0, 6.0), (1.0, 2.0), (5.0, 10.0))


def test_graphs_keep_apart_and_in_order() -> None:
    curves = [Curve("b", ((1, 1),)), Curve("a", ((1, 1),)), Curve("b", ((1, 1),))]
    assert [(b.graph, b.runs) for b in bands_of(curves)] == [("b", 2), ("a", 1)]


def test_between_its_evaluations_a_curve_is_a_straight_line() -> None:
    [band] = bands_of([Curve("g", ((0, 0), (100, 10))), Curve("g", ((0, 0), (50, 7), (100, 10)))])
    assert band.steps == (0, 50, 100)
    assert (band.least[1], band.most[1]) == (5.0, 7)


def test_a_run_that_was_solved_keeps_its_last_value() -> None:
    [band] = bands_of([Curve("g", ((0, 0), (10, 8))), Curve("g", ((0, 0), (10, 4), (30, 6)))])
    assert (band.steps[-1], band.least[-1], band.most[-1]) == (30, 6, 8)


def test_a_band_begins_where_all_its_runs_have_begun() -> None:
    [band] = bands_of([Curve("g", ((0, 1), (20, 1))), Curve("g", ((10, 3), (20, 3)))])
    assert band.steps == (10, 20)


def test_several_evaluations_at_one_step_are_all_in_the_curve() -> None:
    [band] = bands_of([Curve("g", ((10, 1), (10, 3), (20, 5)))])
    assert (band.steps, band.middle) == ((10, 20), (3, 5))


# the picture


def test_the_picture_is_a_png_with_a_colour_for_each_graph(tmp_path: Path) -> None:
    points: Points = [(n * 1000, n * n) for n in range(20)]
    one = a_run(tmp_path / "a", points, "one")
    out = plot([one], tmp_path / "one.png")
    assert out == tmp_path / "one.png"
    assert out.read_bytes().startswith(b"\x89PNG")
    assert BLUE in colours(out)
    assert ORANGE not in colours(out)
    two = a_run(tmp_path / "b", points[::-1], "two")
    assert {BLUE, ORANGE} <= colours(plot([one, two], tmp_path / "two.png"))


def test_a_single_evaluation_can_be_drawn(tmp_path: Path) -> None:
    assert plot([a_run(tmp_path / "a", [(0, 3.0)])], tmp_path / "x.png").stat().st_size > 1000
