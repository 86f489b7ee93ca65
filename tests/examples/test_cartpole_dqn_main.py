"""The training loop without the engine solves CartPole, and is repeatable."""

import pytest

from examples.cartpole_dqn_main import main
from tests.quick_selection import exhaustive_except


@pytest.mark.slow
@pytest.mark.parametrize("seed", exhaustive_except([(0,)], range(2)))
def test_the_loop_solves_cartpole(seed: int) -> None:
    assert main(seed) >= 475


@pytest.mark.slow
def test_the_loop_has_the_same_result_twice() -> None:
    assert main(seed=5, max_train_iters=100) == main(seed=5, max_train_iters=100)
