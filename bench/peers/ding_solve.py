"""DI-engine with the configurations that come with it, under the protocol of `bench learn`.

DI-engine's own training loops run, with an evaluator that asks the monitor. Its envs are those of gym 0.25: CartPole-v1
(the configurations are for CartPole-v0, whose episodes end after 200 steps), Pendulum-v1 and LunarLander-v2.
"""

from __future__ import annotations

import copy
import importlib
import logging
import os
import tempfile
from typing import Any

import gym
import numpy as np
from ding import entry
from ding.worker import InteractionSerialEvaluator

from bench.peers.solve_protocol import Report, RunMonitor, main, task_of

# The module of the configuration, and the function that trains by it.
CONFIGS = {
    "cartpole_dqn": (
        "dizoo.classic_control.cartpole.config.cartpole_dqn_config",
        "serial_pipeline",
    ),
    "cartpole_c51": (
        "dizoo.classic_control.cartpole.config.cartpole_c51_config",
        "serial_pipeline",
    ),
    "cartpole_ppo": (
        "dizoo.classic_control.cartpole.config.cartpole_ppo_config",
        "serial_pipeline_onpolicy",
    ),
    "cartpole_a2c": (
        "dizoo.classic_control.cartpole.config.cartpole_a2c_config",
        "serial_pipeline_onpolicy",
    ),
    "pendulum_sac": (
        "dizoo.classic_control.pendulum.config.pendulum_sac_config",
        "serial_pipeline",
    ),
    "pendulum_td3": (
        "dizoo.classic_control.pendulum.config.pendulum_td3_config",
        "serial_pipeline",
    ),
    "lunarlander_dqn": ("dizoo.box2d.lunarlander.config.lunarlander_dqn_config", "serial_pipeline"),
    "lunarlander_ppo": (
        "dizoo.box2d.lunarlander.config.lunarlander_ppo_config",
        "serial_pipeline_onpolicy",
    ),
}
OTHER_ENVS = {"CartPole-v0": "CartPole-v1"}


def solve(kind: str, seed: int, time_limit_s: float) -> Report:
    """Do one run."""
    logging.disable(logging.INFO)
    task = task_of(kind)
    module_name, pipeline = CONFIGS[kind]
    module = importlib.import_module(module_name)
    main_config, create_config = (
        copy.deepcopy(config) for config in (module.main_config, module.create_config)
    )
    main_config.env.evaluator_env_num = main_config.env.n_evaluator_episode = task.episodes
    main_config.env.stop_value = float("inf")
    main_config.policy.load_path = ""
    monitor, steps = RunMonitor(task, time_limit_s), [0]
    play = InteractionSerialEvaluator.eval

    def should_eval(self: Any, train_iter: int) -> bool:
        return True

    def evaluate(
        self: Any, save: Any = None, train_iter: int = -1, envstep: int = -1, *_: Any, **__: Any
    ) -> tuple[bool, dict[str, Any]]:
        steps[0] = envstep

        def returns(seed: int) -> float:
            self._env.seed(seed, dynamic_seed=False)
            _, info = play(self, None, train_iter, envstep)
            return float(np.mean(info["eval_episode_return"]))

        return monitor.is_over(envstep, returns), {"eval_episode_return": [0.0]}

    with tempfile.TemporaryDirectory() as folder:
        before = os.getcwd()
        os.chdir(folder)  # where it writes logs and checkpoints
        InteractionSerialEvaluator.should_eval = should_eval
        InteractionSerialEvaluator.eval = evaluate
        try:
            train = getattr(entry, pipeline)
            train((main_config, create_config), seed=seed, max_env_step=task.max_steps)
        finally:
            InteractionSerialEvaluator.eval = play
            os.chdir(before)
    return monitor.report(steps[0])


def make_env(env: str, *arguments: Any, **options: Any) -> Any:
    """`gym.make`, with the env of the task in place of that of the configuration."""
    return GYM_MAKE(OTHER_ENVS.get(env, env), *arguments, **options)


GYM_MAKE = gym.make

if __name__ == "__main__":
    gym.make = make_env
    main(solve)
