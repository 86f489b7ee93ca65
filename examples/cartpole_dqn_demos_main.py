"""DQN with demonstrations in a training loop of your own: it learns from them before the first env step, and later on.

    python examples/cartpole_dqn_demos_main.py [SEED]

`flowrl run cartpole_dqn_demos` trains with the same demonstrations, a quarter of each batch.
"""

import sys
from pathlib import Path

import torch

import flowrl.graphs
from flowrl.nodes import (
    DatasetReader,
    Dqn,
    Evaluator,
    Gymnasium,
    Learner,
    Mlp,
    NaiveReplayBuffer,
    SampleCollector,
    SerialEnvManager,
)

DEMOS = Path(str(flowrl.graphs.__file__)).parent / "cartpole_demos.npz"
N_SAMPLE = 256  # env steps in each collection
UPDATES = 8  # train iterations after each collection


def main(seed: int = 0, max_train_iters: int = 5000, pretrain_iters: int = 200) -> float:
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
    # the buffer sums the policy's ten rewards, of demonstrations, too
    buffer = NaiveReplayBuffer(
        policy=policy, size=10_000, batch_size=128, demo_share=0.25, seed=seed
    )
    learner = Learner(policy=policy, seed=seed)
    evaluator = Evaluator(env=env, policy=policy, episodes=20, stop_value=475.0, seed=seed)

    buffer.push_demos(DatasetReader(path=str(DEMOS), policy=policy, env=env).fire())
    learner.start(buffer, iters=pretrain_iters)  # batches of demonstrations alone
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
    main(*map(int, sys.argv[1:]))
