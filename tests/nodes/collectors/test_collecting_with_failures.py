"""Rows are right with memory, n-step windows and unrolls, in every stepping, even if envs fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.env_managers.thread_env_manager import ThreadEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.policies.random import Random
from tests.nodes.toy_envs import CountingEnv
from tests.quick_selection import examples

GAMMA = 0.5
MEMORY: Schema = {"memory": Column("float32", (1,))}


class FailingEnv(CountingEnv):
    """Observes [seed, t]; some steps raise."""

    def step(self, action: Any) -> Any:
        if (self.seed + 3 * self.t) % 11 == 0:
            raise ZeroDivisionError("the simulator fell over")
        return super().step(action)


class StepCountingMode:
    """Its memory counts its steps in the episode, so it equals `t`."""

    memory = MEMORY

    def load(self, state: Any) -> None:
        """There is nothing to load."""

    def forward(self, obs: Array, memory: Any) -> dict[str, Array]:
        return {"action": np.zeros(len(obs), np.int64), "memory": memory["memory"] + 1}


def collector(
    count: int, kind: type[Any], n: int, unroll: int | None, burn_in: int, **how: Any
) -> SampleCollector:
    class Learns(Random):
        gamma = GAMMA  # type: ignore[assignment]
        unroll_steps = unroll  # type: ignore[assignment]
        burn_in_steps = burn_in  # type: ignore[assignment]

        def memory_columns(self) -> Schema:
            return MEMORY

        def collect_mode(self, seed: int) -> Any:
            return StepCountingMode()

    env = Gymnasium(id=f"{__name__}:FailingEnv")
    envs = kind(env=env, count=count, seed=n, max_retry=99, retry_waiting_time_s=0.0)
    spec = envs.spec()
    return SampleCollector(
        envs=envs, policy=Learns(obs=spec.obs, action=spec.action), n_sample=n, **how
    )


def check_rows(batch: Batch, unrolls: bool) -> None:
    """Check every column against the observations and the ends of episodes."""
    rows = {name: batch[name] if unrolls else batch[name][:, None] for name in batch}
    seed_t, t = rows["obs"][..., 0], rows["obs"][..., 1]
    first = rows["obs"][:, 0, 1]
    assert (batch["memory"][:, 0] == first).all()
    goes_on = ~rows["last"][:, :-1]
    assert (t[:, 1:] == np.where(goes_on, t[:, :-1] + 1, 0)).all()
    assert (seed_t[:, 1:] == seed_t[:, :-1])[goes_on].all()
    assert (rows["next_obs"][..., 1] == t + 1).all()
    assert (rows["reward"] == t + 1).all()
    assert (rows["discount"] == np.where(rows["terminated"], 0, np.float32(GAMMA))).all()


@pytest.mark.slow
@examples(60)
@given(st.data())
def test_every_row_is_right_despite_failures(data: st.DataObject) -> None:
    unroll = data.draw(st.sampled_from([None, 1, 2, 3, 5]))
    burn_in = data.draw(st.integers(0, unroll - 1)) if unroll else 0
    count = data.draw(st.integers(2, 5))
    kind = data.draw(st.sampled_from([SerialEnvManager, ThreadEnvManager]))
    stepping = data.draw(st.sampled_from(["together", "halves", "independent", "ready"]))
    stride = (unroll or 1) - burn_in
    pieces = data.draw(st.sampled_from([1, 2, 7]))
    node = collector(count, kind, stride * pieces, unroll, burn_in, stepping=stepping)
    try:
        for firing in range(5):
            batch = node.collect()
            assert len(batch) == pieces
            check_rows(batch, unroll is not None)
            if firing == 2:
                node.reset_env()
    finally:
        node.envs.close()
