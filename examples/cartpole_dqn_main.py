"""DQN on CartPole with a main function by hand: the library's nodes, without graph and engine.

    python examples/cartpole_dqn_main.py [SEED]

The graph of such a run is `flowrl run cartpole_dqn`; it adds placement, snapshots and metrics.
"""

import sys
import time

import torch

from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.evaluators.evaluator import Evaluator
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.random import Random

N_SAMPLE = 256  # env steps of one collection
UPDATES = 8  # train iterations on each


def main(seed: int = 0, max_train_iters: int = 5000) -> float:
    """Train until 20 episodes, and 20 more, bring 475 on average; gives the last mean."""
    torch.set_num_threads(1)  # the network is small: more threads only wait for each other
    env = Gymnasium(id="CartPole-v1")
    envs = SerialEnvManager(env=env, count=8, seed=seed)
    spec = envs.spec()
    policy = Dqn(
        obs=spec.obs,
        action=spec.action,
        model=Mlp(hidden=[128, 128], activation="tanh"),
        gamma=0.99,
        nstep=10,
        lr=2e-3,
        loss="mse",
        target_every_iters=50,
    )
    collector = SampleCollector(envs=envs, policy=policy, n_sample=N_SAMPLE, seed=seed)
    buffer = NaiveReplayBuffer(size=10_000, batch_size=128, seed=seed)
    learner = Learner(policy=policy, seed=seed)
    evaluator = Evaluator(env=env, policy=policy, episodes=20, stop_value=475.0, seed=seed)

    collector.reset_policy(Random(obs=spec.obs, action=spec.action))
    buffer.push(collector.collect(1024))
    collector.reset_policy(policy)
    while True:
        buffer.push(collector.collect(weights=learner.state()))
        for update in range(UPDATES):
            learner.train(buffer.sample(), env_steps=0 if update else N_SAMPLE)
        if evaluator.should_eval(learner.train_iter, every_iters=96):
            evaluation = evaluator.eval(learner.state())
            print(f"{learner.train_iter:5} train iterations: return {evaluation.return_mean:.1f}")
            if evaluation.stop or learner.train_iter >= max_train_iters:
                return evaluation.return_mean


if __name__ == "__main__":
    start = time.perf_counter()
    main(*map(int, sys.argv[1:]))
    print(f"{time.perf_counter() - start:.1f} s")
