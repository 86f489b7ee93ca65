"""Learning curves of run folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.core.errors import RunError, UsageError
from flowrl.runs.plot import LearningCurve, curve_bands, learning_curves, plot_runs

Points = list[tuple[int, Any]]


def _metrics_row(node: str, role: str, steps: int, value: Any) -> dict[str, Any]:
    return {"node": node, "role": role, "firing": 1, "env_steps": steps, "return_mean": value}


def make_run(folder: Path, points: Points, graph: str = "cartpole", end: str = "\n") -> Path:
    """A run's folder with an evaluator's rows between those of a learner and a collector."""
    folder.mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    for steps, value in points:
        rows.append({"node": "learner", "firing": 1, "env_steps": steps, "loss": 0.5})
        rows.append(_metrics_row("collector", "collector", steps - 1, -100))
        rows.append(_metrics_row("evaluator", "evaluator", steps, value))
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + end)
    (folder / "summary.json").write_text(json.dumps({"graph": graph}))
    return folder


def colours(path: Path) -> set[tuple[int, ...]]:
    """The colours of a picture, roughly."""
    from matplotlib.image import imread

    pixels = (imread(path)[:, :, :3].reshape(-1, 3) * 5).round().astype(int)
    numbers = np.unique(pixels @ [36, 6, 1]).tolist()  # much faster than unique rows
    return {(number // 36, number // 6 % 6, number % 6) for number in numbers}


BLUE, ORANGE = (1, 2, 4), (5, 2, 0)


def test_a_curve_is_what_the_evaluator_measured(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [(100, 9.5), (200, 20)])
    assert learning_curves(run) == [LearningCurve("cartpole", ((100, 9.5), (200, 20)))]


def test_each_of_several_evaluators_has_a_curve_of_its_own(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [(100, 9), (200, 20)])
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(_metrics_row("big_maze", "evaluator", 150, 3)) + "\n")
    assert learning_curves(run) == [
        LearningCurve("cartpole: big_maze", ((150, 3),)),
        LearningCurve("cartpole: evaluator", ((100, 9), (200, 20))),
    ]


def test_evaluations_without_a_number_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [(100, "nan"), (200, 20), (300, "inf"), (400, True)])
    assert learning_curves(run)[0].points == ((200, 20),)


@pytest.mark.parametrize("end", ["", '\n{"node": "evaluator", "env_st', '\n{"env_steps": 9}\n\n'])
def test_a_run_that_is_still_writing_can_be_drawn(tmp_path: Path, end: str) -> None:
    run = make_run(tmp_path / "a", [(100, 9), (200, 20)], end=end)
    assert learning_curves(run)[0].points == ((100, 9), (200, 20))


def test_a_last_line_cut_within_a_letter_can_be_drawn(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [(100, 9)])
    with (run / "metrics.jsonl").open("ab") as file:
        file.write('{"node": "größ'.encode()[:-1])
    assert learning_curves(run)[0].points == ((100, 9),)


def test_a_run_without_a_summary_is_named_by_its_resolved_graph(tmp_path: Path) -> None:
    run = make_run(tmp_path / "some-run", [(100, 9)])
    (run / "summary.json").unlink()
    assert learning_curves(run)[0].label == "some-run"
    (run / "graph.yaml").write_text("# cartpole_dqn, resolved: this file alone repeats the run\n")
    assert learning_curves(run)[0].label == "cartpole_dqn"


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        plot_runs([tmp_path / "none"], tmp_path / "x.png")
    assert str(error.value) == (
        f"{tmp_path / 'none'}: there is no such folder; 'ls runs' lists the runs"
    )


def test_a_folder_without_metrics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        plot_runs([tmp_path], tmp_path / "x.png")
    assert str(error.value) == (
        f"{tmp_path}: has no metrics.jsonl; give the folder of a run that has begun to report"
    )


def test_a_run_without_an_evaluation_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [(100, "nan")])
    with pytest.raises(RunError) as error:
        plot_runs([run], tmp_path / "x.png")
    assert str(error.value) == (
        f"{run}: contains no evaluation yet; wait for the first one, or add an evaluator to the graph"
    )


def test_a_damaged_line_in_the_middle_is_reported_with_its_number(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [(100, 9)], end="\n{oh\n{}\n")
    with pytest.raises(RunError) as error:
        learning_curves(run)
    assert str(error.value) == (
        f"{run / 'metrics.jsonl'}:4: is not a JSON object; the file is damaged"
    )


def test_an_empty_list_of_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        plot_runs([], tmp_path / "x.png")
    assert str(error.value) == (
        "plot: no run is given; name run folders, such as runs/cartpole_dqn-…"
    )


def test_an_output_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    out = tmp_path / "none" / "x.png"
    with pytest.raises(RunError) as error:
        plot_runs([make_run(tmp_path / "a", [(1, 1)])], out)
    assert str(error.value) == f"{out}: cannot be written: No such file or directory"


# several runs


def test_runs_of_a_graph_are_one_band_of_median_and_range() -> None:
    values = (1.0, 5.0, 3.0)
    [band] = curve_bands(LearningCurve("g", ((10, v), (20, 2 * v))) for v in values)
    assert (band.label, band.runs, band.steps) == ("g", 3, (10, 20))
    assert (band.median, band.low, band.high) == ((3.0, 6.0), (1.0, 2.0), (5.0, 10.0))


def test_each_graph_has_its_own_band_in_the_order_given() -> None:
    curves = [
        LearningCurve("b", ((1, 1),)),
        LearningCurve("a", ((1, 1),)),
        LearningCurve("b", ((1, 1),)),
    ]
    assert [(b.label, b.runs) for b in curve_bands(curves)] == [("b", 2), ("a", 1)]


def test_between_its_evaluations_a_curve_is_a_straight_line() -> None:
    [band] = curve_bands(
        [LearningCurve("g", ((0, 0), (100, 10))), LearningCurve("g", ((0, 0), (50, 7), (100, 10)))]
    )
    assert band.steps == (0, 50, 100)
    assert (band.low[1], band.high[1]) == (5.0, 7)


def test_a_run_that_was_solved_keeps_its_last_value() -> None:
    [band] = curve_bands(
        [LearningCurve("g", ((0, 0), (10, 8))), LearningCurve("g", ((0, 0), (10, 4), (30, 6)))]
    )
    assert (band.steps[-1], band.low[-1], band.high[-1]) == (30, 6, 8)


def test_a_band_begins_where_all_its_runs_have_begun() -> None:
    [band] = curve_bands(
        [LearningCurve("g", ((0, 1), (20, 1))), LearningCurve("g", ((10, 3), (20, 3)))]
    )
    assert band.steps == (10, 20)


def test_several_evaluations_at_one_step_are_all_in_the_curve() -> None:
    [band] = curve_bands([LearningCurve("g", ((10, 1), (10, 3), (20, 5)))])
    assert (band.steps, band.median) == ((10, 20), (3, 5))


# the picture


def test_the_picture_is_a_png_with_a_colour_for_each_graph(tmp_path: Path) -> None:
    points: Points = [(n * 1000, n * n) for n in range(20)]
    one = make_run(tmp_path / "a", points, "one")
    out = plot_runs([one], tmp_path / "one.png")
    assert out == tmp_path / "one.png"
    assert out.read_bytes().startswith(b"\x89PNG")
    assert BLUE in colours(out)
    assert ORANGE not in colours(out)
    two = make_run(tmp_path / "b", points[::-1], "two")
    assert {BLUE, ORANGE} <= colours(plot_runs([one, two], tmp_path / "two.png"))


def test_a_single_evaluation_can_be_drawn(tmp_path: Path) -> None:
    assert (
        plot_runs([make_run(tmp_path / "a", [(0, 3.0)])], tmp_path / "x.png").stat().st_size > 1000
    )
