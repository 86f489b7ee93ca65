"""d3rlpy's CQL, IQL and TD3+BC under the protocol of `bench offline`."""

from __future__ import annotations

from typing import Any

import torch
from d3rlpy.algos import CQLConfig, IQLConfig, TD3PlusBCConfig
from d3rlpy.dataset import MDPDataset
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.models.encoders import VectorEncoderFactory

from bench.peers.offline_protocol import Task, Train, main, rows_of

NEVER = 1_000_000_000


def make(config: Any, *networks: str) -> Any:
    """A function that makes the algorithm of a configuration, whose networks have these names."""

    def made(task: Task) -> Train:
        torch.set_num_threads(1)
        rows = rows_of(task)
        ends = {"terminals": rows["terminated"], "timeouts": rows["truncated"]}
        columns = (rows["obs"], rows["action"], rows["reward"])
        data = MDPDataset(*columns, **{n: end.astype("float32") for n, end in ends.items()})
        layers = VectorEncoderFactory(hidden_units=list(task.hidden))
        encoders = {f"{name}_encoder_factory": layers for name in networks}
        algorithm = config(batch_size=task.batch_size, **encoders).create(device="cpu")

        def train(updates: int) -> None:
            algorithm.fit(
                data,
                n_steps=updates,
                n_steps_per_epoch=updates,
                logger_adapter=NoopAdapterFactory(),
                show_progress=False,
                save_interval=NEVER,
            )

        return train

    return made


MAKERS = {
    "cql": make(CQLConfig, "actor", "critic"),
    "iql": make(IQLConfig, "actor", "critic", "value"),
    "td3bc": make(TD3PlusBCConfig, "actor", "critic"),
}

if __name__ == "__main__":
    main(MAKERS)
