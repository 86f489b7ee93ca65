"""flowrl's PPO under the protocol of `bench training`: its nodes in a loop, without evaluations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.peers.training_protocol import EPOCHS, Load, Train, main
from flowrl.machine.numerics import reset_numerics
from flowrl.nodes import (
    Gymnasium,
    Learner,
    Ppo,
    SampleCollector,
    SerialEnvManager,
    VectorEnvManager,
)


def make_training(env_manager: Any) -> Callable[[Load], Train]:
    def make(load: Load) -> Train:
        reset_numerics(1)
        envs = env_manager(env=Gymnasium(id="CartPole-v1"), count=load.envs, seed=0)
        spec = envs.spec()
        policy = Ppo(
            obs=spec.obs,
            action=spec.action,
            epochs=EPOCHS,
            minibatch_size=load.minibatch_size,
        )
        collector = SampleCollector(envs=envs, policy=policy, n_sample=load.rows, seed=0)
        learner = Learner(policy=policy, seed=0)
        return lambda: learner.train(
            collector.collect(weights=learner.state()), env_steps=load.rows
        )

    return make


if __name__ == "__main__":
    main({"serial": make_training(SerialEnvManager), "vector": make_training(VectorEnvManager)})
