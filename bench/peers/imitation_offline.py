"""imitation's BC and GAIL under the protocol of `bench offline`."""

from __future__ import annotations

import gymnasium
import numpy as np
import torch
from imitation.algorithms.adversarial.gail import GAIL as Gail
from imitation.algorithms.bc import BC as Bc
from imitation.data.types import Transitions
from imitation.rewards.reward_nets import BasicRewardNet
from imitation.util import logger
from imitation.util.networks import RunningNorm
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy

from bench.peers.offline_protocol import GAIL, Task, Train, main, rows_of

CARTPOLE = "CartPole-v1"


def demonstrations(task: Task) -> Transitions:
    rows = rows_of(task)
    infos = np.array([{}] * len(rows["obs"]))
    ends = rows["terminated"] | rows["truncated"]
    return Transitions(rows["obs"], rows["action"], infos, rows["next_obs"], ends)


def make_bc(task: Task) -> Train:
    torch.set_num_threads(1)
    env = gymnasium.make(CARTPOLE)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    trainer = Bc(
        **spaces,
        rng=np.random.default_rng(0),
        policy=ActorCriticPolicy(**spaces, lr_schedule=lambda _: 1e-3, net_arch=list(task.hidden)),
        demonstrations=demonstrations(task),
        batch_size=task.batch_size,
        custom_logger=logger.configure(format_strs=[]),
        device="cpu",
    )
    return lambda updates: trainer.train(n_batches=updates, progress_bar=False)


def make_gail(task: Task) -> Train:
    torch.set_num_threads(1)
    envs = make_vec_env(task.env, n_envs=GAIL.envs, seed=0)
    layers = {"net_arch": list(task.hidden)}
    sizes = {"n_steps": GAIL.env_steps // GAIL.envs, "batch_size": task.batch_size}
    ppo = PPO(
        "MlpPolicy", envs, n_epochs=GAIL.epochs, device="cpu", seed=0, policy_kwargs=layers, **sizes
    )
    reward = BasicRewardNet(
        envs.observation_space,
        envs.action_space,
        hid_sizes=task.hidden,
        normalize_input_layer=RunningNorm,
    )
    trainer = Gail(
        demonstrations=demonstrations(task),
        demo_batch_size=task.batch_size,
        venv=envs,
        gen_algo=ppo,
        reward_net=reward,
        n_disc_updates_per_round=GAIL.discriminator_steps,
        allow_variable_horizon=True,
        custom_logger=logger.configure(format_strs=[]),
    )
    return lambda updates: trainer.train(updates * GAIL.env_steps)


MAKERS = {"bc": make_bc, "gail": make_gail}

if __name__ == "__main__":
    main(MAKERS)
