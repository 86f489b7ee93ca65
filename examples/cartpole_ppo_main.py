"""PPO on CartPole in a training loop of your own, with flowrl's nodes but without a graph and the engine.

    python examples/cartpole_ppo_main.py [SEED]

On-policy: each token of rows is learned from once, with the weights that collected it. `flowrl run cartpole_ppo` trains
in the same way.
"""

import sys
import time

import torch

from flowrl.nodes import Evaluator, Gymnasium, Learner, Ppo, SampleCollector, SerialEnvManager

N_SAMPLE = 256  # env steps in each collection


def main(seed: int = 0, max_train_iters: int = 2000) -> float:
    """Train until the mean return of 20 episodes, and of 20 others, is 475; return the last mean."""
    torch.set_num_threads(1)  # more threads would slow down a network this small
    env = Gymnasium(id="CartPole-v1")
    envs = SerialEnvManager(env=env, count=8, seed=seed)
    spec = envs.spec()
    policy = Ppo(
        obs=spec.obs,
        action=spec.action,
        gae_lambda=0.98,
        clip=0.3,
        epochs=3,
        minibatch_size=128,
        lr=1e-3,
    )
    collector = SampleCollector(envs=envs, policy=policy, n_sample=N_SAMPLE, seed=seed)
    learner = Learner(policy=policy, seed=seed)
    evaluator = Evaluator(env=env, policy=policy, episodes=20, stop_value=475.0, seed=seed)
    while True:
        rows = collector.collect(weights=learner.state())
        learner.train(rows, env_steps=N_SAMPLE)
        if evaluator.should_eval(learner.train_iter, every_iters=6):
            evaluation = evaluator.eval(learner.state())
            print(f"{learner.train_iter:5} train iterations: return {evaluation.return_mean:.1f}")
            if evaluation.stop or learner.train_iter >= max_train_iters:
                return evaluation.return_mean


if __name__ == "__main__":
    start = time.perf_counter()
    main(*map(int, sys.argv[1:]))
    print(f"{time.perf_counter() - start:.1f} s")
