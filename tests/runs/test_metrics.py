"""The metrics of a run as columns."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from flowrl.api import load
from flowrl.core.errors import UsageError
from flowrl.runs.metrics import metric_columns
from tests.runs.test_run import EDGES, NODES
from tests.toys.toy_runs import toy_graph

ROWS = """\
{"node": "l", "role": "learner", "firing": 100, "env_steps": 800, "loss": 0.5}
{"node": "e", "role": "evaluator", "firing": 0, "env_steps": 800, "return_mean": 20.0}
{"node": "l", "role": "learner", "firing": 200, "env_steps": 1600, "loss": "nan", "q": 2}
"""


def test_each_node_has_columns_and_nan_where_a_report_lacks_a_metric(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(ROWS)
    columns = metric_columns(tmp_path)
    assert list(columns) == ["l", "e"]
    assert list(columns["l"]) == ["firing", "env_steps", "loss", "q"]
    np.testing.assert_array_equal(columns["l"]["env_steps"], [800, 1600])
    assert columns["l"]["env_steps"].dtype == np.int64
    np.testing.assert_array_equal(columns["l"]["loss"], [0.5, np.nan])
    np.testing.assert_array_equal(columns["l"]["q"], [np.nan, 2])
    np.testing.assert_array_equal(columns["e"]["return_mean"], [20])


def test_a_result_has_the_metrics_of_its_run(tmp_path: Path) -> None:
    result = load(toy_graph(NODES, EDGES)).run(train_iters=4, out=tmp_path / "r", quiet=True)
    evaluations = result.metrics()["e"]
    np.testing.assert_array_equal(evaluations["return_mean"], [2, 4])
    np.testing.assert_array_equal(evaluations["train_iters"], [2, 4])


def test_a_data_frame_has_a_row_for_each_report(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    result = load(toy_graph(NODES, EDGES)).run(train_iters=4, out=tmp_path / "r", quiet=True)
    (tmp_path / "r" / "metrics.jsonl").write_text(ROWS)
    frame = result.metrics_data_frame()
    assert list(frame["node"]) == ["l", "e", "l"]
    np.testing.assert_array_equal(frame["loss"], [0.5, np.nan, np.nan])
    assert frame[frame["node"] == "e"]["return_mean"].mean() == 20


def test_without_pandas_a_data_frame_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    result = load(toy_graph(NODES, EDGES)).run(train_iters=1, out=tmp_path / "r", quiet=True)
    with pytest.raises(
        UsageError, match=r"needs pandas; pip install pandas, or take .*metrics\(\)"
    ):
        result.metrics_data_frame()


def test_a_run_that_ended_before_the_first_report_has_no_metrics(tmp_path: Path) -> None:
    result = load(toy_graph(NODES, EDGES)).run(train_iters=1, out=tmp_path / "r", quiet=True)
    assert result.metrics() == {}


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no metrics\.jsonl; expected the folder of a run"):
        metric_columns(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["serial", "processes"])
def test_every_episode_that_ended_is_in_one_report(placement: str, tmp_path: Path) -> None:
    """A report's rows are those of the episodes since the report before; the last one is made at the cut."""
    found = []
    for every in (1, 500, 10**9):
        graph = load("cartpole_ppo", set={"collector.log_every_steps": every})
        out = tmp_path / str(every)
        result = graph.run(steps=1500, placement=placement, out=out, quiet=True)
        columns = result.metrics()["collector"]
        episodes = np.diff(columns["episodes"], prepend=0)
        assert sum(episodes) == result.episodes > 0
        means = (columns["return_mean"], columns["length_mean"])
        found.append([sum(np.round(episodes * mean)) for mean in means])
    assert found[0] == found[1] == found[2]
    assert found[0][1] <= result.env_steps
