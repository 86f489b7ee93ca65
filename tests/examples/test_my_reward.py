"""The reward nodes compute their rewards, and each changes what is learned."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.api import load
from flowrl.core.batch import Batch

FOLDER = Path(__file__).parents[2] / "examples" / "my_reward"


@pytest.fixture
def rewards(monkeypatch: Any) -> Any:
    """The module, imported as by the graphs beside it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield __import__("rewards")
    sys.modules.pop("rewards")


def rows(reward: list[float], position: list[float]) -> Batch:
    next_obs = np.zeros((len(reward), 4), np.float32)
    next_obs[:, 0] = position
    return Batch({"reward": np.array(reward, np.float32), "next_obs": next_obs})


def test_the_function_reduces_rewards_more_the_farther_the_cart_is_out(rewards: Any) -> None:
    data = rows([1, 1, 1], [0, 1.2, -2.4])
    result = rewards.stay_centred(data, weight=0.4)
    np.testing.assert_allclose(result["reward"], [1.0, 0.9, 0.6], rtol=1e-6)
    assert result["reward"].dtype == np.float32
    assert result["next_obs"] is data["next_obs"]


def test_the_class_divides_by_the_root_mean_square_of_all_rows(rewards: Any) -> None:
    node = rewards.UnitReward()
    np.testing.assert_allclose(node.fire(rows([3, 3], [0, 0]))["reward"], [1, 1])
    scale = ((9 + 9 + 25 + 1) / 4) ** 0.5
    np.testing.assert_allclose(
        node.fire(rows([5, 1], [0, 0]))["reward"], [5 / scale, 1 / scale], rtol=1e-6
    )


def test_the_class_keeps_rewards_of_zero(rewards: Any) -> None:
    assert rewards.UnitReward().fire(rows([0, 0], [0, 0]))["reward"].tolist() == [0, 0]


def test_the_class_reports_its_scale_at_its_interval(rewards: Any) -> None:
    node = rewards.UnitReward(log_every_rows=4)
    for _ in range(4):
        node.fire(rows([2, 2], [0, 0]))
    assert [dict(record.values) for record in node.ctx.records] == [{"reward_scale": 2.0}] * 2


def test_the_class_continues_from_a_saved_state(rewards: Any) -> None:
    one, two = rewards.UnitReward(), rewards.UnitReward()
    one.fire(rows([4], [0]))
    two.load_state_dict(one.state_dict())
    more = rows([2, 1], [0, 0])
    assert one.fire(more)["reward"].tolist() == two.fire(more)["reward"].tolist()


@pytest.mark.slow
def test_each_reward_changes_what_is_learned(tmp_path: Path) -> None:
    graphs = ["cartpole_dqn", FOLDER / "centred.yaml", FOLDER / "scaled.yaml"]
    results = [load(g).run(train_iters=20, out=tmp_path / str(i)) for i, g in enumerate(graphs)]
    assert len({result.digest for result in results}) == 3


def test_a_wrong_value_is_reported_before_anything_runs() -> None:
    checked = load(FOLDER / "scaled.yaml", {"unit.log_every_rows": 0}).check()
    assert not checked.ok
    assert "log_every_rows" in str(checked.problems[0])


def shown(language: str, line: str) -> str:
    """The block of the page with this line."""
    page = (FOLDER.parents[1] / "docs" / "rewards.md").read_text(encoding="utf-8")
    [block] = [b for b in re.findall(rf"```{language}\n(.*?)```", page, re.S) if line in b]
    return str(block)


def test_the_page_shows_the_reward_model_of_the_example() -> None:
    code = shown("python", "# surprise.py").removeprefix("# surprise.py\n")
    assert (FOLDER / "surprise.py").read_text(encoding="utf-8").endswith(code)
    assert len(code.splitlines()) < 30
    edit = shown("yaml", "surprise:Surprise").splitlines()
    assert set(edit) <= set((FOLDER / "surprise.yaml").read_text(encoding="utf-8").splitlines())
    assert len(edit) == 3


def test_the_functions_of_the_page_shape_rewards(tmp_path: Path) -> None:
    (tmp_path / "my_rewards.py").write_text(shown("python", "# my_rewards.py"), encoding="utf-8")
    edit = shown("yaml", "my_rewards:")
    (tmp_path / "a.yaml").write_text(f"extends: cartpole_dqn\n{edit}", encoding="utf-8")
    other = edit.replace("potential:", "function:").replace("uprightness", "near_the_centre")
    (tmp_path / "b.yaml").write_text(f"extends: cartpole_dqn\n{other}", encoding="utf-8")
    runs = [
        load(graph).run(train_iters=8, out=tmp_path / Path(str(graph)).stem)
        for graph in (tmp_path / "a.yaml", tmp_path / "b.yaml", "cartpole_dqn")
    ]
    assert len({run.digest for run in runs}) == 3


def test_the_reward_model_learns_to_forecast(tmp_path: Path) -> None:
    load(FOLDER / "surprise.yaml", {"surprise.log_every_tokens": 1}).run(
        train_iters=120, out=tmp_path / "run"
    )
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [
        row["loss"] for row in map(json.loads, lines) if row["node"] == "surprise" and "loss" in row
    ]
    assert losses[-1] < 0.5 * losses[0]
