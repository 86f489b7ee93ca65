"""DQN with a reward model, random network distillation, in a training loop of your own. It is logged in a folder.

    python examples/cartpole_dqn_rnd_main.py [SEED]

A reward model changes the rows between the collector and the buffer. `flowrl run cartpole_dqn_rnd` trains in the same
way.
"""

import sys
from pathlib import Path

import torch

from flowrl import RunLog
from flowrl.nodes import (
    Dqn,
    Evaluator,
    Gymnasium,
    Learner,
    Mlp,
    NaiveReplayBuffer,
    Random,
    Rnd,
    SampleCollector,
    SerialEnvManager,
)

N_SAMPLE = 256  # env steps in each collection
UPDATES = 8  # train iterations after each collection


def main(seed: int = 0, max_train_iters: int = 5000, folder: str | Path = "runs/rnd-main") -> float:
    """Train until the mean return of 20 episodes, and of 20 others, is 475; return the last mean."""
    torch.set_num_threads(1)  # more threads would slow down a network this small
    env = Gymnasium(id="CartPole-v1")
    envs = SerialEnvManager(env=env, count=8, seed=seed)
    spec = envs.spec()
    policy = Dqn(
        obs=spec.obs,
        action=spec.action,
        model=Mlp(hidden=[128, 128], activation="tanh"),
        nstep=10,
        lr=2e-3,
        loss="mse",
        target={"every_iters": 50},
    )
    collector = SampleCollector(envs=envs, policy=policy, n_sample=N_SAMPLE, seed=seed)
    rnd = Rnd(seed=seed)
    buffer = NaiveReplayBuffer(policy=policy, size=10_000, batch_size=128, seed=seed)
    learner = Learner(policy=policy, seed=seed)
    evaluator = Evaluator(env=env, policy=policy, episodes=20, stop_value=475.0, seed=seed)
    nodes = {"collector": collector, "rnd": rnd, "learner": learner, "evaluator": evaluator}

    with RunLog(folder, **nodes) as log:  # tensorboard --logdir runs/rnd-main
        collector.reset_policy(Random(obs=spec.obs, action=spec.action))
        buffer.push(rnd.fire(collector.collect(1024)))
        collector.reset_policy(policy)
        while True:
            rows = collector.collect(weights=learner.state())
            buffer.push(rnd.fire(rows))  # the reward of each row gets its bonus
            for update in range(UPDATES):
                learner.train(buffer.sample(), env_steps=0 if update else N_SAMPLE)
            if evaluator.should_eval(learner.train_iter, every_iters=96):
                evaluation = evaluator.eval(learner.state())
                print(f"{log.progress.env_steps:6} env steps: return {evaluation.return_mean:.1f}")
                if evaluation.stop or learner.train_iter >= max_train_iters:
                    return evaluation.return_mean
            log.write()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
