"""Training loops by hand: they solve their tasks, and are repeatable."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.cartpole_dqn_demos_main import main as demos_main
from examples.cartpole_dqn_rnd_main import main as rnd_main
from examples.cartpole_ppo_main import main as ppo_main
from examples.pendulum_td3_main import main as td3_main


@pytest.mark.slow
def test_ppo_solves_cartpole() -> None:
    assert ppo_main(0) >= 475


@pytest.mark.exhaustive
def test_td3_solves_pendulum() -> None:
    assert td3_main(0) >= -200


def test_ppo_has_the_same_result_twice() -> None:
    assert ppo_main(seed=5, max_train_iters=6) == ppo_main(seed=5, max_train_iters=6)


def test_td3_has_the_same_result_twice() -> None:
    assert td3_main(seed=5, max_train_iters=8) == td3_main(seed=5, max_train_iters=8)


@pytest.mark.exhaustive
def test_dqn_solves_cartpole_with_a_novelty_bonus(tmp_path: Path) -> None:
    assert rnd_main(0, folder=tmp_path / "run") >= 475


@pytest.mark.exhaustive
def test_dqn_solves_cartpole_with_demonstrations() -> None:
    assert demos_main(0) >= 475


def test_dqn_with_a_novelty_bonus_has_the_same_result_twice(tmp_path: Path) -> None:
    one, two = (rnd_main(5, 8, tmp_path / name) for name in ("1", "2"))
    assert one == two
    files = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("1", "2")]
    assert files[0] == files[1] != ""


def test_dqn_with_demonstrations_has_the_same_result_twice() -> None:
    assert demos_main(5, 8, 4) == demos_main(5, 8, 4)
