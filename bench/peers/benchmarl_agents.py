"""BenchMARL with the settings that come with it, under the protocol of `bench agents`."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np
import torch
from benchmarl.algorithms import MappoConfig, QmixConfig, VdnConfig
from benchmarl.environments import PettingZooTask
from benchmarl.experiment import Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from mpe2 import simple_spread_v3
from tensordict import TensorDict
from torchrl.envs import PettingZooWrapper
from torchrl.envs.utils import ExplorationType, set_exploration_type

from bench.peers.agents_protocol import ENV_OPTIONS, Act, main

ALGORITHMS = {"vdn": VdnConfig, "qmix": QmixConfig, "mappo": MappoConfig}
BATCH_STEPS = 6000  # of its settings: the env steps between trainings


def train(kind: str, seed: int, env_steps: int) -> tuple[float, int, Act]:
    """Train a team; return the seconds, the env steps, and the team."""
    torch.set_num_threads(1)
    start_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        experiment = experiment_of(kind, seed, env_steps, folder)
        experiment.run()
    return time.perf_counter() - start_s, experiment.total_frames, team(experiment.policy)


def experiment_of(kind: str, seed: int, env_steps: int, folder: str) -> Experiment:
    config = ExperimentConfig.get_from_yaml()
    config.max_n_frames = env_steps
    config.evaluation, config.render, config.loggers, config.create_json = False, False, [], False
    config.save_folder = folder
    config.prefer_continuous_actions = False
    config.on_policy_collected_frames_per_batch = BATCH_STEPS
    config.off_policy_collected_frames_per_batch = BATCH_STEPS
    task = PettingZooTask.SIMPLE_SPREAD.get_from_yaml()
    task.config = dict(ENV_OPTIONS)
    task.get_env_fun = make_envs  # its own function imports envs that PettingZoo no longer has
    model = MlpConfig.get_from_yaml()
    return Experiment(
        task=task,
        algorithm_config=ALGORITHMS[kind].get_from_yaml(),
        model_config=model,
        critic_model_config=model,
        seed=seed,
        config=config,
    )


def make_envs(num_envs: int, continuous_actions: bool, seed: int | None, device: Any) -> Any:
    """A function that makes one env, as the task's own does."""
    options = {**ENV_OPTIONS, "continuous_actions": continuous_actions}

    def make() -> Any:
        env = simple_spread_v3.parallel_env(**options)
        return PettingZooWrapper(
            env, return_state=True, categorical_actions=True, seed=seed, device=device
        )

    return make


def team(policy: Any) -> Act:
    def act(obs: Any, begins: bool) -> Any:
        rows = torch.as_tensor(np.asarray(obs, np.float32))
        agents = TensorDict({"observation": rows}, [len(rows)])
        with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
            chosen = policy(TensorDict({"agent": agents}, []))
        return chosen["agent", "action"].numpy()

    return act


if __name__ == "__main__":
    main(train, BATCH_STEPS)
