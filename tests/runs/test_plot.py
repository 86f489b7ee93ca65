"""Learning curves of run folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.core.errors import RunError, UsageError
from flowrl.runs.learning_curves import EvaluatedRun, read_run, without_repeats
from flowrl.runs.plot import LearningCurve, curve_bands, labelled_curves, plot_runs, title_of
from flowrl.runs.setting_labels import setting_labels

RunPoints = list[tuple[int, Any]]
GRAPH = """\
# {graph}, resolved: this file alone repeats the run
about: An example.
seed: {seed}
limits: {{steps: {steps}}}
nodes:
  collector: {{type: collector, policy: {{type: dqn, lr: {lr}}}}}
  learner: {{type: learner, policy: {{type: dqn, lr: {lr}}}}}
edges:
  - {{from: collector.data, to: learner.data}}
"""


def _metrics_row(node: str, role: str, steps: int, value: Any) -> dict[str, Any]:
    return {"node": node, "role": role, "firing": 1, "env_steps": steps, "return_mean": value}


def make_run(
    folder: Path, points: RunPoints, graph: str = "cartpole", end: str = "\n", **settings: Any
) -> Path:
    """A run's folder with an evaluator's rows between those of a learner and a collector."""
    folder.mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    for steps, value in points:
        rows.append({"node": "learner", "firing": 1, "env_steps": steps, "loss": 0.5})
        rows.append(_metrics_row("collector", "collector", steps - 1, -100))
        rows.append(_metrics_row("evaluator", "evaluator", steps, value))
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + end)
    status = settings.pop("status", "finished")
    (folder / "summary.json").write_text(json.dumps({"graph": graph, "status": status}))
    if settings:
        values = {"seed": 0, "lr": 0.1, "steps": 1000, **settings}
        (folder / "graph.yaml").write_text(GRAPH.format(graph=graph, **values))
    return folder


def curves_of(run: Path) -> list[LearningCurve]:
    return labelled_curves([read_run(run)])


def colours(path: Path) -> set[tuple[int, ...]]:
    """The colours of a picture, roughly."""
    from matplotlib.image import imread

    pixels = (imread(path)[:, :, :3].reshape(-1, 3) * 5).round().astype(int)
    numbers = np.unique(pixels @ [36, 6, 1]).tolist()  # much faster than unique rows
    return {(number // 36, number // 6 % 6, number % 6) for number in numbers}


BLUE, ORANGE = (1, 2, 4), (5, 2, 0)


def test_a_curve_is_what_the_evaluator_measured(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [(100, 9.5), (200, 20)])
    assert curves_of(run) == [LearningCurve("cartpole", ((100, 9.5), (200, 20)))]


def test_each_of_several_evaluators_has_a_curve_of_its_own(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [(100, 9), (200, 20)])
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(_metrics_row("big_maze", "evaluator", 150, 3)) + "\n")
    assert curves_of(run) == [
        LearningCurve("cartpole (big_maze)", ((150, 3),)),
        LearningCurve("cartpole (evaluator)", ((100, 9), (200, 20))),
    ]


def test_evaluations_without_a_number_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [(100, "nan"), (200, 20), (300, "inf"), (400, True)])
    assert curves_of(run)[0].points == ((200, 20),)


@pytest.mark.parametrize("end", ["", '\n{"node": "evaluator", "env_st', '\n{"env_steps": 9}\n\n'])
def test_a_run_that_is_still_writing_can_be_drawn(tmp_path: Path, end: str) -> None:
    run = make_run(tmp_path / "a", [(100, 9), (200, 20)], end=end)
    assert curves_of(run)[0].points == ((100, 9), (200, 20))


def test_a_last_line_cut_within_a_letter_can_be_drawn(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [(100, 9)])
    with (run / "metrics.jsonl").open("ab") as file:
        file.write('{"node": "größ'.encode()[:-1])
    assert curves_of(run)[0].points == ((100, 9),)


def test_a_run_without_a_summary_is_named_by_its_resolved_graph(tmp_path: Path) -> None:
    run = make_run(tmp_path / "some-run", [(100, 9)])
    (run / "summary.json").unlink()
    assert curves_of(run)[0].label == "some-run"
    (run / "graph.yaml").write_text("# cartpole_dqn, resolved: this file alone repeats the run\n")
    with pytest.raises(RunError, match=r"graph\.yaml: is empty.*; the file is damaged"):
        curves_of(run)
    (run / "graph.yaml").write_text("# cartpole_dqn, resolved: this file\nseed: 3\n")
    assert curves_of(run)[0].label == "cartpole_dqn"


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
        read_run(run)
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
    assert str(error.value) == (
        f"{out}: cannot be written: No such file or directory; give another file by -o"
    )


def test_an_ending_that_names_no_format_is_refused_before_runs_are_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        plot_runs([tmp_path / "none"], tmp_path / "x.jpg")
    assert (
        str(error.value) == f"plot: {tmp_path / 'x.jpg'}: unknown ending '.jpg'; known: .png, .svg"
    )


# several runs


def test_runs_of_a_graph_are_one_band_of_median_and_range() -> None:
    values = (1.0, 5.0, 3.0)
    [band] = curve_bands(LearningCurve("g", ((10, v), (20, 2 * v))) for v in values)
    assert (band.label, len(band.curves), band.steps) == ("g", 3, (10, 20))
    assert (band.median, band.low, band.high) == ((3.0, 6.0), (1.0, 2.0), (5.0, 10.0))


def test_each_graph_has_its_own_band_in_the_order_given() -> None:
    curves = [
        LearningCurve("b", ((1, 1),)),
        LearningCurve("a", ((1, 1),)),
        LearningCurve("b", ((1, 1),)),
    ]
    assert [(b.label, len(b.curves)) for b in curve_bands(curves)] == [("b", 2), ("a", 1)]


def test_between_its_evaluations_a_curve_is_a_straight_line() -> None:
    [band] = curve_bands(
        [LearningCurve("g", ((0, 0), (100, 10))), LearningCurve("g", ((0, 0), (50, 7), (100, 10)))]
    )
    assert band.steps == (0, 50, 100)
    assert (band.low[1], band.high[1]) == (5.0, 7)


def test_a_band_ends_where_its_first_run_ended() -> None:
    solved = LearningCurve("g", ((0, 0), (10, 8)), solved=True)
    [band] = curve_bands([solved, LearningCurve("g", ((0, 0), (10, 4), (30, 6)))])
    assert (band.steps, band.low, band.high) == ((0, 10), (0, 4), (0, 8))
    assert band.curves[0].points[-1] == (10, 8)


def test_a_band_begins_where_all_its_runs_have_begun() -> None:
    [band] = curve_bands(
        [LearningCurve("g", ((0, 1), (20, 1))), LearningCurve("g", ((10, 3), (20, 3)))]
    )
    assert band.steps == (10, 20)


def test_several_evaluations_at_one_step_are_all_in_the_curve() -> None:
    [band] = curve_bands([LearningCurve("g", ((10, 1), (10, 3), (20, 5)))])
    assert (band.steps, band.median) == ((10, 20), (3, 5))


# settings and repeats


def test_runs_of_different_settings_are_apart_and_named_by_them(tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [{"seed": 0}, {"seed": 1}, {"seed": 0, "lr": 0.2}]
    points: RunPoints = [(1, 1), (2, 3)]
    runs = [read_run(make_run(tmp_path / str(i), points, **s)) for i, s in enumerate(settings)]
    bands = curve_bands(labelled_curves(runs))
    assert [(b.label, len(b.curves)) for b in bands] == [("policy.lr 0.1", 2), ("policy.lr 0.2", 1)]
    assert title_of(runs) == "cartpole: An example."
    other = read_run(make_run(tmp_path / "other", [(1, 1)], "pendulum", seed=0))
    labels = [curve.label for curve in labelled_curves([*runs, other])]
    assert labels[1:] == ["cartpole, policy.lr 0.1", "cartpole, policy.lr 0.2", "pendulum"]
    assert title_of([*runs, other]) == "cartpole, pendulum"


def test_where_a_run_ends_is_no_setting_and_its_beginning_is_a_repeat(tmp_path: Path) -> None:
    long = read_run(make_run(tmp_path / "long", [(1, 1), (2, 3)], steps=2))
    short = read_run(make_run(tmp_path / "short", [(1, 1)], steps=1))
    again = read_run(make_run(tmp_path / "again", [(1, 1), (2, 3)], steps=2))
    kept, left_out = without_repeats([short, long, again])
    assert kept == [long]
    assert left_out == [
        f"{run.folder} is left out: it repeats {long.folder} (the same graph and seed 0)"
        for run in (again, short)
    ]


@pytest.mark.parametrize("other", [{"seed": 1}, {"seed": 0, "lr": 0.2}, {}])
def test_another_seed_other_settings_and_unknown_ones_are_no_repeat(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    first = read_run(make_run(tmp_path / "a", [(1, 1)], seed=0))
    second = read_run(make_run(tmp_path / "b", [(1, 1)], **other))
    assert without_repeats([first, second]) == ([first, second], [])


def test_the_same_seed_with_other_values_is_no_repeat(tmp_path: Path) -> None:
    """The graph is not deterministic."""
    runs = [read_run(make_run(tmp_path / str(v), [(1, 1), (2, v)], seed=0)) for v in (3, 4)]
    assert without_repeats(runs)[0] == runs


BASE = {"c.type": "collector", "c.lr": "1", "b.type": "buffer", "b.data.from": "c.data"}


@pytest.mark.parametrize(
    ("others", "labels"),
    [
        ([BASE], [""]),
        ([BASE, {**BASE, "c.lr": "2"}], ["c.lr 1", "c.lr 2"]),
        (
            [BASE, {**BASE, "c.lr": "1", "torch_threads": "2"}],
            ["torch_threads default", "torch_threads 2"],
        ),
        (
            [BASE, {**BASE, "rnd.type": "rnd", "rnd.w": "3", "b.data.from": "rnd.out"}],
            ["no rnd", "rnd: rnd"],
        ),
        (
            [{**BASE, "l.type": "l", "l.policy.lr": v, "e.policy.lr": v} for v in "12"],
            ["policy.lr 1", "policy.lr 2"],
        ),
        (
            [
                {"l.type": "l", "l.policy.lr": v, "c.policy.lr": v, "c.learning_policy.lr": v}
                for v in "12"
            ],
            ["policy.lr 1", "policy.lr 2"],
        ),
        (
            [
                {"l.type": "l", "l.policy.type": "dqn", "l.policy.nstep": "3"},
                {"l.type": "l", "l.policy.type": "ppo", "l.policy.clip": "0.2"},
            ],
            ["l.policy: dqn", "l.policy: ppo"],
        ),
        (
            [{f"a.{key}": value for key in "pqrst"} for value in "12"],
            ["a.p 1, a.q 1, a.r 1, and 2 more", "a.p 2, a.q 2, a.r 2, and 2 more"],
        ),
    ],
)
def test_groups_are_named_by_the_settings_that_differ(
    others: list[dict[str, str]], labels: list[str]
) -> None:
    assert setting_labels(others) == labels


def test_a_solved_run_is_known_as_such(tmp_path: Path) -> None:
    run: EvaluatedRun = read_run(make_run(tmp_path / "a", [(1, 1)], status="solved"))
    assert labelled_curves([run])[0].solved


# the picture


@pytest.mark.slow
def test_the_picture_is_a_png_with_a_colour_for_each_graph(tmp_path: Path) -> None:
    points: RunPoints = [(n * 1000, n * n) for n in range(20)]
    one = make_run(tmp_path / "a", points, "one", status="solved")
    drawn = plot_runs([one], tmp_path / "one.png")
    assert (drawn.path, drawn.left_out) == (tmp_path / "one.png", ())
    assert drawn.path.read_bytes().startswith(b"\x89PNG")
    assert BLUE in colours(drawn.path)
    assert ORANGE not in colours(drawn.path)
    two = make_run(tmp_path / "b", points[::-1], "two")
    assert {BLUE, ORANGE} <= colours(plot_runs([one, two], tmp_path / "two.png").path)


def test_a_file_that_ends_in_svg_is_one_and_always_the_same(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [(0, 1), (1000, 9)])
    first, again = (plot_runs([run], tmp_path / f"{k}.svg").path.read_bytes() for k in range(2))
    assert first.startswith(b"<?xml")
    assert b"<svg" in first
    assert first == again


@pytest.mark.parametrize("runs", [1, 2])
def test_a_single_evaluation_is_a_point(runs: int, tmp_path: Path) -> None:
    """A line of one point has no length, so its marker is what can be seen; the legend shows another one."""
    folders = [make_run(tmp_path / str(k), [(100, 3.0 + k)], seed=k) for k in range(runs)]
    text = plot_runs(folders, tmp_path / "x.svg").path.read_text()
    markers = [line for line in text.splitlines() if "<use " in line and "fill: #1f77b4" in line]
    assert len(markers) >= 2


def test_a_folder_of_runs_stands_for_all_runs_in_it(tmp_path: Path) -> None:
    for seed, points in enumerate([[(100, 9.5), (200, 20)], [(100, 1), (200, 30)], []]):
        make_run(tmp_path / "all" / f"seed{seed}", points, seed=seed)
    drawn = plot_runs([tmp_path / "all"], tmp_path / "plot.png")
    assert drawn.left_out == (
        f"left out: {tmp_path}/all/seed2: contains no evaluation yet; wait for the first one, or add an evaluator to "
        "the graph",
    )
    assert BLUE in colours(drawn.path)


def test_a_folder_of_runs_without_an_evaluation_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "all" / "seed0", [], seed=0)
    with pytest.raises(RunError, match=r"all/seed0: contains no evaluation yet"):
        plot_runs([tmp_path / "all"], tmp_path / "plot.png")
