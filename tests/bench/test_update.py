"""`python -m bench update` compares train iterations with their bare passes through torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from bench import update
from flowrl.core.state import Count
from flowrl.nodes.models.networks import TrainableNetwork
from flowrl.nodes.policies.td3 import Td3


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_bare_work_of_an_iteration_is_all_of_its_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = Td3(obs=update.OBS, action=update.REAL)
    mode: Any = policy.learn_mode(0)
    batch, descend = update.random_batch(policy), TrainableNetwork.descend
    bare = update.recorded_work(mode, lambda: mode.forward(batch, policy.command(Count())))
    assert TrainableNetwork.descend is descend
    before, calls = mode.state_dict()["critic"]["weights"], []
    for name in ("actor", "critic", "actor_target", "critic_target"):
        module = getattr(mode, name).module
        module.register_forward_hook(lambda m, x, y, name=name: calls.append(name))
    bare()
    # The target is computed, then the critic descends, then the actor, whose loss is a value of the critic.
    assert calls == ["actor_target", "critic_target", "critic", "actor", "critic"]
    after = mode.state_dict()["critic"]["weights"]
    assert all((before[n] == after[n]).all() for n in before)  # it does not learn


def test_a_measurement_has_times_and_their_ratio() -> None:
    found = update.measure("reinforce", seconds=0.0)
    assert found["ratio"] == found["whole_ms"] / found["bare_ms"]
