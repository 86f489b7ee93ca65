"""Computes what imitation's discriminators say and lose on given steps, with which `test_imitation.py` compares.

    python -c "from bench.peers import IMITATION as peer; print(peer.python())"   # makes a Python that has imitation
    THAT_PYTHON tests/references/make_imitation_references.py

The file `imitation.json` holds the outputs of imitation's networks for steps of CartPole, and what its trainers make of
them: logits, rewards, and the loss of `train_disc`, which is the mean over both batches together.
"""

from __future__ import annotations

import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from imitation.algorithms.adversarial.airl import AIRL as Airl
from imitation.algorithms.adversarial.gail import GAIL as Gail
from imitation.data.types import Transitions
from imitation.rewards.reward_nets import BasicRewardNet, BasicShapedRewardNet
from imitation.util import logger
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

FILE = Path(__file__).with_name("imitation.json")
ROWS, GAMMA = 12, 0.9
RNG = np.random.default_rng(0)


def main() -> None:
    """Write the file."""
    torch.manual_seed(0)
    agent, expert = steps(), steps()
    cases = {"gail": gail_case(agent, expert), "airl": airl_case(agent, expert)}
    lines = [f'"made_by": {json.dumps({"imitation": version("imitation")})}']
    lines += [f"{json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def steps() -> dict[str, Any]:
    return {
        "obs": RNG.standard_normal((ROWS, 4)).astype(np.float32),
        "acts": RNG.integers(2, size=ROWS),
        "next_obs": RNG.standard_normal((ROWS, 4)).astype(np.float32),
        "dones": np.arange(ROWS) % 5 == 4,
        "infos": np.array([{}] * ROWS),
    }


def trainer_of(cls: Any, net: Any, expert: dict[str, Any]) -> Any:
    """A trainer whose networks have weights far from zero, so that their outputs differ."""
    envs = make_vec_env("CartPole-v1", n_envs=1, seed=0)
    ppo = PPO("MlpPolicy", envs, seed=0, device="cpu")
    reward_net = net(envs.observation_space, envs.action_space)
    with torch.no_grad():
        ppo.policy.action_net.weight.normal_(std=2.0)
        for weights in reward_net.parameters():
            weights.mul_(3)
    return cls(
        demonstrations=Transitions(
            *(expert[k] for k in ("obs", "acts", "infos", "next_obs", "dones"))
        ),
        demo_batch_size=ROWS,
        venv=envs,
        gen_algo=ppo,
        reward_net=reward_net,
        allow_variable_horizon=True,
        log_dir=tempfile.mkdtemp(),
        custom_logger=logger.configure(format_strs=[]),
    )


def inputs_of(trainer: Any, of: dict[str, Any]) -> tuple[Any, ...]:
    """What imitation's networks take: states, actions, next states and ends."""
    return trainer.reward_train.preprocess(of["obs"], of["acts"], of["next_obs"], of["dones"])


def gail_case(agent: dict[str, Any], expert: dict[str, Any]) -> dict[str, Any]:
    trainer = trainer_of(Gail, BasicRewardNet, expert)
    with torch.no_grad():
        logits = {
            name: trainer.logits_expert_is_high(*inputs_of(trainer, of)).tolist()
            for name, of in (("agent", agent), ("expert", expert))
        }
        reward = trainer.reward_train(*inputs_of(trainer, agent)).tolist()
    loss = trainer.train_disc(expert_samples=expert, gen_samples=agent)["disc_loss"]
    return {**logits, "reward": reward, "loss": loss}


def airl_case(agent: dict[str, Any], expert: dict[str, Any]) -> dict[str, Any]:
    def net(*spaces: Any) -> Any:
        return BasicShapedRewardNet(*spaces, discount_factor=GAMMA)

    trainer = trainer_of(Airl, net, expert)
    found = {name: airl_steps(trainer, of) for name, of in (("agent", agent), ("expert", expert))}
    loss = trainer.train_disc(expert_samples=expert, gen_samples=agent)["disc_loss"]
    return {**found, "gamma": GAMMA, "loss": loss}


@torch.no_grad()
def airl_steps(trainer: Any, of: dict[str, Any]) -> dict[str, Any]:
    """The parts of imitation's logit and the logit itself, of each step."""
    net = trainer.reward_train
    state, action, next_state, done = inputs_of(trainer, of)
    logp = trainer._get_log_policy_act_prob(state, torch.tensor(of["acts"]))
    logit = trainer.logits_expert_is_high(state, action, next_state, done, logp)
    parts = {
        "g_t": net.base(state, action, next_state, done),
        "h_t": net.potential(state).flatten(),
        "h_tp1": net.potential(next_state).flatten(),
        "done": done,
        "logp": logp,
        "logit": logit,
    }
    return {name: values.tolist() for name, values in parts.items()}


if __name__ == "__main__":
    main()
