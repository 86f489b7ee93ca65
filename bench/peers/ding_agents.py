"""DI-engine with the configurations that come with it, under the protocol of `bench agents`.

Its env is written for PettingZoo 1.22, from which mpe2 has taken the particle envs. So modules of mpe2 stand in for
those that DI-engine imports, and `reset` returns observations without infos, as it did then. Its envs are stepped in
the process of the run, which on two cores is faster than in the subprocesses of its configuration.
"""

from __future__ import annotations

import copy
import importlib
import logging
import os
import sys
import tempfile
import time
import types
from typing import Any

import numpy as np
import pettingzoo.utils.conversions
import torch
from ding import entry
from ding.worker import InteractionSerialEvaluator

from bench.peers.agents_protocol import ENV_OPTIONS, Act, main

CONFIG = "dizoo.petting_zoo.config.ptz_simple_spread_{}_config"
PIPELINES = {"qmix": "serial_pipeline", "mappo": "serial_pipeline_onpolicy"}
OLD_MODULES = {
    "pettingzoo.mpe._mpe_utils.simple_env": "mpe2._mpe_utils.simple_env",
    "pettingzoo.mpe.simple_spread.simple_spread": "mpe2.simple_spread.simple_spread",
}
WARM_UP_STEPS = 1200


def train(kind: str, seed: int, env_steps: int) -> tuple[float, int, Act]:
    """Train a team; return the seconds, the env steps, and the team."""
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    module = importlib.import_module(CONFIG.format(kind))
    main_config, create_config = (
        copy.deepcopy(config) for config in (module.main_config, module.create_config)
    )
    main_config.policy.cuda = False
    create_config.env_manager.type = "base"
    assert main_config.env.max_cycles == ENV_OPTIONS["max_cycles"]
    with tempfile.TemporaryDirectory() as folder:
        before = os.getcwd()
        os.chdir(folder)  # where it writes logs and checkpoints
        try:
            start_s = time.perf_counter()
            run = getattr(entry, PIPELINES[kind])
            policy = run((main_config, create_config), seed=seed, max_env_step=env_steps)
            wall_s = time.perf_counter() - start_s
        finally:
            os.chdir(before)
    return wall_s, env_steps, team(policy.eval_mode, main_config.env)


def team(mode: Any, config: Any) -> Act:
    from dizoo.petting_zoo.envs.petting_zoo_simple_spread_env import PettingZooEnv

    env = PettingZooEnv(config)
    env.reset()

    def act(obs: Any, begins: bool) -> Any:
        if begins:
            mode.reset([0])
        rows = env._process_obs(dict(zip(env.agents, obs, strict=True)))
        tensors = {name: torch.as_tensor(row) for name, row in rows.items()}
        return np.asarray(mode.forward({0: tensors})[0]["action"])

    return act


def old_parallel_wrapper(make: Any) -> Any:
    """PettingZoo's wrapper function, whose envs return observations alone from `reset`."""
    make_parallel = PARALLEL_WRAPPER(make)

    def make_env(**options: Any) -> Any:
        env = make_parallel(**options)
        reset = env.reset
        env.reset = lambda seed=None: reset(seed=seed)[0]
        return env

    return make_env


def stand_in_for_old_modules() -> None:
    for name, new in OLD_MODULES.items():
        package = name.rpartition(".")[0]
        for module in (package, package.rpartition(".")[0]):
            sys.modules.setdefault(module, types.ModuleType(module))
        sys.modules[name] = importlib.import_module(new)
    pettingzoo.utils.conversions.parallel_wrapper_fn = old_parallel_wrapper


def no_evaluation(*_: Any, **__: Any) -> tuple[bool, dict[str, Any]]:
    """In place of the evaluations of DI-engine's training loops, since all teams are evaluated after their training."""
    return False, {"eval_episode_return": np.zeros(1)}


PARALLEL_WRAPPER = pettingzoo.utils.conversions.parallel_wrapper_fn

if __name__ == "__main__":
    stand_in_for_old_modules()
    InteractionSerialEvaluator.eval = no_evaluation
    main(train, WARM_UP_STEPS)
