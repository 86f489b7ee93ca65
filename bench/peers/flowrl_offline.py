"""flowrl's BC, GAIL, CQL, IQL and TD3+BC under the protocol of `bench offline`: their nodes in a loop."""

from __future__ import annotations

from typing import Any

from bench.peers.offline_protocol import DATA, GAIL, Task, Train, main
from flowrl.core.batch import Column
from flowrl.core.context import Context
from flowrl.machine.numerics import reset_numerics
from flowrl.nodes import (
    Bc,
    Cql,
    DatasetReader,
    Gail,
    Gymnasium,
    Iql,
    Learner,
    Mlp,
    NaiveReplayBuffer,
    Ppo,
    SampleCollector,
    SerialEnvManager,
    Td3bc,
)


def make(cls: Any, env_id: str, *networks: str) -> Any:
    """A function that makes a learner from data alone, whose networks have these names."""

    def made(task: Task) -> Train:
        reset_numerics(1)
        env = Gymnasium(id=env_id)
        spec = SerialEnvManager(env=env, count=1, seed=0).spec()
        models = {name: Mlp(hidden=list(task.hidden)) for name in networks}
        policy = cls(obs=spec.obs, action=spec.action, **models)
        rows = DatasetReader(path=str(DATA / task.data), policy=policy, env=env).fire()
        size = {"size": len(rows), "batch_size": task.batch_size}
        buffer = NaiveReplayBuffer(policy=policy, seed=0, **size)
        buffer.push(rows)
        learner = Learner(policy=policy, seed=0)
        return lambda updates: learner.start(buffer, iters=updates)

    return made


def make_gail(task: Task) -> Train:
    reset_numerics(1)
    env = Gymnasium(id=task.env)
    envs = SerialEnvManager(env=env, count=GAIL.envs, seed=0)
    spec, model = envs.spec(), Mlp(hidden=list(task.hidden), activation="tanh")
    policy = Ppo(
        obs=spec.obs,
        action=spec.action,
        model=model,
        epochs=GAIL.epochs,
        minibatch_size=task.batch_size,
    )
    collector = SampleCollector(envs=envs, policy=policy, n_sample=GAIL.env_steps, seed=0)
    learner = Learner(policy=policy, seed=0)
    columns = {"obs": spec.obs, "action": spec.action, "reward": Column("float32")}
    gail = Gail(
        context=Context("gail", inputs={"data": columns}),
        model=Mlp(hidden=list(task.hidden), activation="relu"),
        batch_size=task.batch_size,
        updates_per_token=GAIL.discriminator_steps,
        newest_rows=GAIL.env_steps,
    )
    gail.keep_expert(DatasetReader(path=str(DATA / task.data), policy=policy, env=env).fire())

    def train(updates: int) -> None:
        for _ in range(updates):
            rows = gail.fire(collector.collect(weights=learner.state()), None)
            learner.train(rows, env_steps=GAIL.env_steps)

    return train


MAKERS = {
    "bc": make(Bc, "CartPole-v1", "model"),
    "gail": make_gail,
    "cql": make(Cql, "Pendulum-v1", "actor", "critic"),
    "iql": make(Iql, "Pendulum-v1", "actor", "critic", "value"),
    "td3bc": make(Td3bc, "Pendulum-v1", "actor", "critic"),
}

if __name__ == "__main__":
    main(MAKERS)
