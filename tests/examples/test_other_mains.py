"""The training loops by hand for PPO and TD3: they solve their tasks, and are repeatable."""

from __future__ import annotations

import pytest

from examples.cartpole_ppo_main import main as ppo_main
from examples.pendulum_td3_main import main as td3_main


@pytest.mark.slow
def test_ppo_solves_cartpole() -> None:
    assert ppo_main(0) >= 475


@pytest.mark.slow
def test_td3_solves_pendulum() -> None:
    assert td3_main(0) >= -200


def test_ppo_has_the_same_result_twice() -> None:
    assert ppo_main(seed=5, max_train_iters=6) == ppo_main(seed=5, max_train_iters=6)


def test_td3_has_the_same_result_twice() -> None:
    assert td3_main(seed=5, max_train_iters=8) == td3_main(seed=5, max_train_iters=8)
