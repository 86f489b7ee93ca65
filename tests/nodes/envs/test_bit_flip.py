"""BitFlip: goals by the convention of gymnasium-robotics."""

import numpy as np
from gymnasium.utils.env_checker import check_env

from flowrl.nodes.envs.bit_flip import BitFlip, is_reached, reward


def test_it_is_an_env_of_gymnasium() -> None:
    check_env(BitFlip(bits=5), skip_render_check=True)


def test_an_action_flips_one_bit_and_the_goal_ends_the_episode() -> None:
    env = BitFlip(bits=6)
    obs, _ = env.reset(seed=3)
    wrong = np.flatnonzero(obs["achieved_goal"] != obs["desired_goal"])
    assert len(wrong) > 1
    for number, bit in enumerate(wrong, 1):
        before = obs["achieved_goal"]
        obs, r, terminated, truncated, _ = env.step(int(bit))
        assert (obs["achieved_goal"] != before).sum() == 1
        assert terminated == (number == len(wrong))
        assert r == (0 if terminated else -1)
        assert not truncated
        assert r == env.compute_reward(obs["achieved_goal"], obs["desired_goal"], {})


def test_an_episode_has_as_many_steps_as_bits_at_most() -> None:
    env = BitFlip(bits=4)
    obs, _ = env.reset(seed=0)
    right = int(np.flatnonzero(obs["achieved_goal"] == obs["desired_goal"])[0])
    ends = [env.step(right)[2:4] for _ in range(4)]
    assert ends == [(False, False)] * 3 + [(False, True)]


def test_rewards_are_computed_for_many_goals() -> None:
    achieved, desired = np.array([[0, 1], [1, 1]]), np.array([[0, 1], [0, 1]])
    assert is_reached(achieved, desired).tolist() == [True, False]
    assert reward(achieved, desired).tolist() == [0, -1]
