"""A group of learners computes what one learner computes from all of their rows, over the whole catalogue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.batch import Batch
from flowrl.core.facts import UnsoundError
from flowrl.core.state import Count
from flowrl.nodes.compute import Compute
from flowrl.nodes.groups import ThreadGroup
from flowrl.nodes.models.networks import trainable_networks
from tests.nodes.learn_modes import same_bits
from tests.nodes.policies.test_every_algorithm import (
    ALGORITHMS,
    each_algorithm,
    make,
    random_batch,
    small_models,
)

FIRST = 20  # rows of the first learner, of 48


def in_threads(works: list[Callable[[], None]]) -> None:
    """Run functions at the same time; raise the first error of one."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]


def parts_of(batch: Batch) -> list[Batch]:
    cut = slice(FIRST), slice(FIRST, None)
    return [Batch({n: np.ascontiguousarray(batch[n][part]) for n in batch}) for part in cut]


def group_of_two(policy: Any) -> list[Any]:
    return [policy.learn_mode(5, Compute(group=view)) for view in ThreadGroup.of_size(2)]


def learn(policy: Any, modes: list[Any], batches: list[Batch]) -> None:
    """Do one train iteration with each mode at the same time."""

    def work(mode: Any, batch: Batch) -> None:
        try:
            mode.forward(batch, policy.command(Count()))
        except BaseException:
            mode.compute.group.leave()
            raise

    in_threads([lambda m=m, b=b: work(m, b) for m, b in zip(modes, batches, strict=True)])  # type: ignore[misc]


def grouped(name: str, **params: Any) -> Any:
    """An algorithm that a group can learn with."""
    if ALGORITHMS[name].learns_batch_statistics:
        pytest.skip("refuses groups")
    return make(name, **params)


@each_algorithm
def test_a_group_has_the_gradients_of_one_learner(name: str) -> None:
    policy = grouped(name)
    one, two = policy.learn_mode(5), group_of_two(policy)
    iters = 2 if name in ("ppg", "redq") else 1  # until each of their networks has learned
    for seed in range(iters):
        batch = random_batch(policy, seed)
        one.forward(batch, policy.command(Count()))
        learn(policy, two, parts_of(batch))
    for n, network in trainable_networks(one).items():
        scale = max(1.0, float(network.grads.abs().max()))
        for mode in two:
            torch.testing.assert_close(
                getattr(mode, n).grads, network.grads, rtol=0, atol=1e-6 * scale
            )
    assert same_bits(two[0].weights(), two[1].weights())


@pytest.mark.exhaustive
@each_algorithm
def test_after_fifty_iterations_a_group_has_the_weights_of_one_learner(name: str) -> None:
    policy = grouped(name)
    # TRPO's solver multiplies rounding by the condition of the Fisher matrix, and FQF's cosine features multiply that
    # of a proposed fraction by up to 64 pi.
    tolerance = 1e-4 if name in ("trpo", "fqf") else 1e-5
    one, two = policy.learn_mode(5), group_of_two(policy)
    for seed in range(50):
        batch = random_batch(policy, seed)
        one.forward(batch, policy.command(Count()))
        learn(policy, two, parts_of(batch))
    for n, array in one.weights().items():
        np.testing.assert_allclose(two[0].weights()[n], array, atol=tolerance, err_msg=n)
    assert same_bits(two[0].state_dict(), two[1].state_dict())


@pytest.mark.parametrize("name", ["r2d2", "acer"])
def test_steps_that_are_not_valid_count_for_no_learner(name: str) -> None:
    policy = make(name)
    one, two = policy.learn_mode(5), group_of_two(policy)
    valid = np.ones((48, 4), bool)
    valid[30:, 1:] = False  # sequences of the second learner that end early
    batch = random_batch(policy).replace(valid=valid)
    one.forward(batch, policy.command(Count()))
    learn(policy, two, parts_of(batch))
    for n, network in trainable_networks(one).items():
        torch.testing.assert_close(getattr(two[0], n).grads, network.grads, rtol=0, atol=1e-6)


def test_observations_are_normalised_by_the_moments_of_all_rows() -> None:
    policy = make("ppo", **small_models("ppo", normalise_obs=True), normalise_values=True)
    one, two = policy.learn_mode(5), group_of_two(policy)
    batch = random_batch(policy)
    one.forward(batch, policy.command(Count()))
    learn(policy, two, parts_of(batch))
    moments = [n for n in one.weights() if "moments" in n]
    assert len(moments) == 3
    for n in moments:
        np.testing.assert_allclose(two[1].weights()[n], one.weights()[n], rtol=1e-12)
    assert two[0].returns.count == one.returns.count == 48  # type: ignore[attr-defined]


def test_sums_are_added_in_the_order_of_the_replicas() -> None:
    """Floating-point addition is not associative, so the order is a part of the result."""
    given = [1e8, 1.0, -1e8]
    views, found = ThreadGroup.of_size(3), [0.0] * 3

    def work(k: int) -> None:
        found[k] = float(views[k].sum(torch.tensor(given[k])))

    in_threads([lambda k=k: work(k) for k in range(3)])  # type: ignore[misc]
    assert found == [float(np.float32(np.float32(1e8) + np.float32(1.0)) - np.float32(1e8))] * 3


def test_rows_of_all_learners_are_gathered_in_order() -> None:
    views, found = ThreadGroup.of_size(2), [torch.zeros(0)] * 2

    def work(k: int) -> None:
        found[k] = views[k].gather(torch.full((k + 1, 2), float(k)))

    in_threads([lambda k=k: work(k) for k in range(2)])  # type: ignore[misc]
    assert found[0].tolist() == found[1].tolist() == [[0, 0], [1, 1], [1, 1]]


def test_a_learner_that_fails_ends_the_wait_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make("dqn")
    modes = group_of_two(policy)
    batches = parts_of(random_batch(policy))
    wrong = Batch({n: batches[1][n] for n in batches[1] if n != "reward"})
    with pytest.raises((AttributeError, RuntimeError)):
        learn(policy, modes, [batches[0], wrong])
    with pytest.raises(RuntimeError, match="another one of its group of 2 has failed"):
        modes[0].forward(batches[0], policy.command(Count()))


def test_statistics_of_batches_are_refused() -> None:
    with pytest.raises(UnsoundError, match="crossq normalises by statistics of batches"):
        group_of_two(make("crossq"))
