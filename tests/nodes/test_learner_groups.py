"""Every policy of the library learns in a group of learners, or says why it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from flowrl.core.batch import Batch
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.core.records import MetricsRecord
from flowrl.core.replica_group import ReplicaGroup
from flowrl.core.row_order import split_rows
from flowrl.nodes.learners.hook import Hook
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.models.networks import trainable_networks
from flowrl.runtime.group_exchange import GroupExchange
from flowrl.runtime.group_firing import GroupFiring
from flowrl.runtime.site_state import SiteState
from tests.nodes.learn_modes import same_bits
from tests.nodes.policies.test_every_algorithm import (
    ALGORITHMS,
    each_algorithm,
    make,
    random_batch,
)

SIZE = 3


@dataclass
class FiredByHand:
    """Stands in for the instance of a learner: it learns from the next of some batches."""

    node: Learner
    batches: list[Batch] = field(default_factory=list)
    site: SiteState = field(default_factory=SiteState)
    busy_s: float = 0.0
    fired: int = 0

    @property
    def ctx(self) -> Context:
        return self.node.ctx

    @property
    def key(self) -> str:
        return self.ctx.key

    def take_values(self) -> Sequence[Any]:
        return [self.batches.pop(0)]

    def call(self, values: Sequence[Any]) -> Any:
        return self.node.fire(*values)

    def complete(self, priorities: Batch | None) -> None:
        self.fired += 1
        self.ctx.clock = self.ctx.clock.add(self.ctx.counted_as, train_iters=1)


def group_of(policy: Any, **params: Any) -> list[Learner]:
    contexts = [Context("learner", k, 5, group=ReplicaGroup(k, SIZE)) for k in range(SIZE)]
    return [Learner(policy=policy, context=ctx, log_every_iters=1, **params) for ctx in contexts]


def learn(learners: list[Learner], batches: list[Batch]) -> None:
    """Let a group learn from batches, of which each learner has a part."""
    instances = [FiredByHand(learner) for learner in learners]
    for batch in batches:
        for instance, part in zip(instances, split_rows(batch, SIZE, True), strict=True):
            instance.batches.append(part)
    firing = GroupFiring(instances, GroupExchange(), 1, False)  # type: ignore[arg-type]
    try:
        for _ in batches:
            firing.fire()
    finally:
        firing.close()


def networks_of(learner: Learner) -> dict[str, Any]:
    return {n: net.state_dict() for n, net in trainable_networks(learner.mode).items()}


@each_algorithm
def test_all_learners_of_a_group_have_the_same_bits(name: str) -> None:
    if ALGORITHMS[name].learns_batch_statistics:
        pytest.skip("refuses groups")
    policy = make(name)
    learners = group_of(policy)
    learn(learners, [random_batch(policy, seed) for seed in range(2)])
    for other in learners[1:]:
        assert same_bits(networks_of(learners[0]), networks_of(other))
        assert other.command == learners[0].command


def test_a_policy_that_cannot_learn_in_a_group_says_why() -> None:
    policy = make("crossq")
    known = Surroundings({"data": policy.learn_columns()}, {}, frozenset({"weights"}), group_size=2)
    config = Learner.Config(policy=policy)
    with pytest.raises(UnsoundError) as raised:
        Learner.describe(config, known)
    assert str(raised.value) == (
        "a group of learners cannot learn: crossq normalises by statistics of batches, which the learners of a group "
        "do not share; give the learner one replica"
    )


def test_metrics_are_means_over_all_rows() -> None:
    policy = make("dqn")
    one = Learner(policy=policy, context=Context("learner", 0, 5), log_every_iters=2)
    batches = [random_batch(policy, seed) for seed in range(2)]
    for batch in batches:
        one.fire(batch)
    learners = group_of(policy)
    for learner in learners:
        learner.config = learner.config.model_copy(update={"log_every_iters": 2})
    learn(learners, batches)
    [wanted] = [r.values for r in one.ctx.records if isinstance(r, MetricsRecord)]
    for learner in learners:
        [found] = [r.values for r in learner.ctx.records if isinstance(r, MetricsRecord)]
        assert list(found) == list(wanted)
        assert found == learners[0].ctx.records[0].values  # type: ignore[union-attr]
        for name in ("loss", "learned_reward_mean"):
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5)


class Meddler(Hook):
    """A hook that changes weights by what it sees of the rows."""

    def after_iter(self, learner: Learner, batch: Batch, result: Any) -> None:
        learner.mode.q.params.add_(float(batch["reward"].mean()))  # type: ignore[attr-defined]


class Reporter(Hook):
    """A hook that reports a metric of one learner only."""

    def after_iter(self, learner: Learner, batch: Batch, result: Any) -> None:
        if learner.ctx.replica == 1:
            learner.add_metrics({"mine": 1.0})


@pytest.mark.parametrize(
    ("hook", "text"),
    [
        (
            Meddler,
            "after train iteration 1, replica 1 of the group has other weights than replica 0",
        ),
        (Reporter, "replica 1 of the group and replica 0 have different metrics .mine.;"),
    ],
)
def test_learners_that_differ_are_an_error(hook: Callable[[], Hook], text: str) -> None:
    policy = make("dqn")
    with pytest.raises(RuntimeError, match=text):
        learn(group_of(policy, hooks=[hook()]), [random_batch(policy)])
