"""flowrl's PPO under the protocol of `bench training`: its nodes in a loop, without evaluations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.peers.training_protocol import EPOCHS, GAME, Load, Train, main
from flowrl.machine.numerics import reset_numerics
from flowrl.nodes import (
    ActionRepeat,
    Cnn,
    EpisodicLife,
    FireOnReset,
    FrameStack,
    Gymnasium,
    Learner,
    Mlp,
    NoopStart,
    Ppo,
    Resize,
    RewardClip,
    SampleCollector,
    SerialEnvManager,
    VectorEnvManager,
)


def make_training(env_manager: Any, precision: str = "float32") -> Callable[[Load], Train]:
    def make(load: Load) -> Train:
        reset_numerics(1)
        envs = env_manager(env=make_env(load), count=load.envs, seed=0)
        spec = envs.spec()
        policy = Ppo(
            obs=spec.obs,
            action=spec.action,
            model=Cnn() if load.images else Mlp(hidden=[64, 64], activation="tanh", shared=False),
            epochs=EPOCHS,
            minibatch_size=load.minibatch_size,
        )
        collector = SampleCollector(envs=envs, policy=policy, n_sample=load.rows, seed=0)
        learner = Learner(policy=policy, seed=0, precision=precision)
        return lambda: learner.train(
            collector.collect(weights=learner.state()), env_steps=load.rows
        )

    return make


def make_env(load: Load) -> Gymnasium:
    """CartPole, or a game with the preprocessing of stable-baselines3's `AtariWrapper` and four stacked frames."""
    if not load.images:
        return Gymnasium(id="CartPole-v1")
    kwargs = {"obs_type": "grayscale", "frameskip": 1, "repeat_action_probability": 0.0}
    wrappers = [
        *(NoopStart(), ActionRepeat(brightest=True), EpisodicLife(), FireOnReset()),
        *(Resize(height=84, width=84), RewardClip(how="sign"), FrameStack(n=4)),
    ]
    return Gymnasium(id=GAME, kwargs=kwargs, wrappers=wrappers)


if __name__ == "__main__":
    main(
        {
            "serial": make_training(SerialEnvManager),
            "vector": make_training(VectorEnvManager),
            "bf16": make_training(SerialEnvManager, precision="bf16"),
        }
    )
