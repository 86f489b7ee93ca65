"""DQN on CartPole in a training loop of your own, with flowrl's nodes but without a graph and the engine.

    python examples/cartpole_dqn_main.py [SEED]

`flowrl run cartpole_dqn` trains in the same way; there, the engine adds checks, placement and metrics.
"""

import sys
import time

import torch

from flowrl.nodes import (
    Dqn,
    Evaluator,
    Gymnasium,
    Learner,
    Mlp,
    NaiveReplayBuffer,
    Random,
    SampleCollector,
    SerialEnvManager,
)

N_SAMPLE = 256  # env steps in each collection
UPDATES = 8  # train iterations after each collection


def main(seed: int = 0, max_train_iters: int = 5000) -> float:
    """Train until the mean return of 20 episodes, and of 20 others, is 475; return the last mean."""
    torch.set_num_threads(1)  # more threads would slow down a network this small
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
        target={"every_iters": 50},
    )
    collector = SampleCollector(envs=envs, policy=policy, n_sample=N_SAMPLE, seed=seed)
    # The buffer sums the rewards of ten steps, as the policy wants.
    buffer = NaiveReplayBuffer(policy=policy, size=10_000, batch_size=128, seed=seed)
    learner = Learner(policy=policy, seed=seed)
    evaluator = Evaluator(env=env, policy=policy, episodes=20, stop_value=475.0, seed=seed)

    # Warm-up: random actions fill the buffer.
    collector.reset_policy(Random(obs=spec.obs, action=spec.action))
    buffer.push(collector.collect(1024))
    collector.reset_policy(policy)
    while True:
        buffer.push(collector.collect(weights=learner.state()))
        for update in range(UPDATES):
            # the learner counts env steps, because exploration decays with them
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
