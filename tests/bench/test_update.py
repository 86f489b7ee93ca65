"""`python -m bench update` compares train iterations with their bare passes through torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench import update
from flowrl.core.state import Count
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.networks import TrainableNetwork
from flowrl.nodes.policies.crossq import Crossq
from flowrl.nodes.policies.td3 import Td3


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
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


class MatrixProducts(TorchDispatchMode):
    """Counts the matrix products that torch does, by the shapes of their operands."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.shapes[tuple(tuple(x.shape) for x in args[-2:])] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["td3", "sac", "acer"])
def test_the_bare_work_has_the_matrix_products_of_the_iteration(name: str) -> None:
    """Among them are those by which gradients go through the critic to the actor."""
    cls = update.algorithms()[name]
    policy = cls(obs=update.OBS, action=update.REAL if cls.actions == "real" else update.DISCRETE)
    mode: Any = policy.learn_mode(0)
    batch, command = update.random_batch(policy), policy.command(Count())

    def learn() -> None:
        mode.iters = 0  # so that the actor learns, too
        mode.forward(batch, command)

    learn()
    bare = update.recorded_work(mode, learn)
    with MatrixProducts() as of_iteration:
        learn()
    with MatrixProducts() as of_bare_work:
        bare()
    assert of_bare_work.shapes == of_iteration.shapes != {}


def test_the_bare_work_learns_statistics_of_batches_where_the_iteration_does() -> None:
    policy = Crossq(obs=update.OBS, action=update.REAL, critic=Mlp(hidden=[8], norm="batch"))
    mode: Any = policy.learn_mode(0)
    batch = update.random_batch(policy)
    bare = update.recorded_work(mode, lambda: mode.forward(batch, policy.command(Count())))
    before = mode.critic.weights()
    bare()
    counts = [n for n in before if n.endswith("batches")]
    assert counts
    assert all((mode.critic.weights()[n] == before[n] + 1).all() for n in counts)
    assert not mode.critic.module.training


def test_a_measurement_has_times_and_their_ratio() -> None:
    found = update.measure("reinforce", seconds=0.0)
    assert found["ratio"] == found["whole_ms"] / found["bare_ms"]
