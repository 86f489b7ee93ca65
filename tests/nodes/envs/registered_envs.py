"""Registers an env with gymnasium when it is imported, as other packages do."""

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

gymnasium.register("Mine-v0", CartPoleEnv, max_episode_steps=100)
