"""TD3 on Pendulum in a training loop of your own, with flowrl's nodes but without a graph and the engine.

    python examples/pendulum_td3_main.py [SEED]

Actions are continuous; the noise of collecting is the policy's. `flowrl run pendulum_td3` trains in the same way.
"""

import sys
import time

import torch

from flowrl.nodes import (
    Evaluator,
    Gymnasium,
    Learner,
    Mlp,
    NaiveReplayBuffer,
    Random,
    SampleCollector,
    SerialEnvManager,
    Td3,
)

N_SAMPLE = 8  # env steps in each collection
UPDATES = 8  # train iterations after each collection


def main(seed: int = 0, max_train_iters: int = 30_000) -> float:
    """Train until the mean return of 20 episodes, and of 20 others, is -200; return the last mean."""
    torch.set_num_threads(1)  # more threads would slow down a network this small
    env = Gymnasium(id="Pendulum-v1")
    envs = SerialEnvManager(env=env, count=8, seed=seed)
    spec = envs.spec()
    policy = Td3(
        obs=spec.obs,
        action=spec.action,
        actor=Mlp(hidden=[128, 128]),
        critic=Mlp(hidden=[128, 128]),
        lr=1e-3,
    )
    collector = SampleCollector(envs=envs, policy=policy, n_sample=N_SAMPLE, seed=seed)
    buffer = NaiveReplayBuffer(size=100_000, batch_size=128, seed=seed)
    learner = Learner(policy=policy, seed=seed)
    evaluator = Evaluator(env=env, policy=policy, episodes=20, stop_value=-200.0, seed=seed)

    # Warm-up: random actions fill the buffer.
    collector.reset_policy(Random(obs=spec.obs, action=spec.action))
    buffer.push(collector.collect(1000))
    collector.reset_policy(policy)
    while True:
        buffer.push(collector.collect(weights=learner.state()))
        for update in range(UPDATES):
            learner.train(buffer.sample(), env_steps=0 if update else N_SAMPLE)
        if evaluator.should_eval(learner.train_iter, every_iters=1000):
            evaluation = evaluator.eval(learner.state())
            print(f"{learner.train_iter:5} train iterations: return {evaluation.return_mean:.1f}")
            if evaluation.stop or learner.train_iter >= max_train_iters:
                return evaluation.return_mean


if __name__ == "__main__":
    start = time.perf_counter()
    main(*map(int, sys.argv[1:]))
    print(f"{time.perf_counter() - start:.1f} s")
