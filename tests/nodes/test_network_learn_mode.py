"""What a learn mode does around `learn`: noise before it, and statistics and targets after it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flowrl.core.errors import InvalidResultError
from flowrl.core.state import Count
from flowrl.nodes.models.mlp import Mlp
from tests.nodes.policies.test_every_algorithm import learn, make, random_batch


def test_a_target_is_a_copy_after_every_so_many_train_iterations() -> None:
    policy = make("dqn", target={"every_iters": 3})
    mode: Any = policy.learn_mode(0)
    copied = []
    for seed in range(7):
        learn(policy, mode, range(seed, seed + 1))
        copied.append(torch.equal(mode.q.params, mode.q_target.params))
    assert copied == [False, False, True, False, False, True, False]


@pytest.mark.parametrize("rule", [{"tau": 0.5}, {"every_iters": 1}])
def test_a_target_that_follows_has_the_statistics_of_the_newest_rows(rule: dict[str, Any]) -> None:
    policy = make("dqn", model=Mlp(hidden=[8], normalise_obs=True), target=rule)
    mode: Any = policy.learn_mode(0)
    before = {n: x.clone() for n, x in mode.q.module.named_buffers()}
    learn(policy, mode, range(1))
    after = dict(mode.q.module.named_buffers())
    assert any(not torch.equal(before[n], after[n]) for n in before)
    for name, of_target in mode.q_target.module.named_buffers():
        assert torch.equal(of_target, after[name]), name


def test_each_train_iteration_has_noise_of_its_own_in_each_network() -> None:
    policy = make("dqn", model=Mlp(hidden=[8], noisy=True), lr=1e-12)
    mode: Any = policy.learn_mode(0)
    batch, command = random_batch(policy), policy.command(Count())
    obs, outputs = torch.from_numpy(batch["obs"].copy()), []
    for _ in range(2):
        mode.forward(batch, command)
        with torch.no_grad():
            outputs += [mode.q(obs)["q"], mode.q_target(obs)["q"]]
    for k, one in enumerate(outputs):
        for other in outputs[k + 1 :]:
            assert (one - other).abs().max() > 1e-3


def test_an_algorithm_that_returns_no_metrics_is_an_error() -> None:
    policy = make("dqn")
    mode: Any = policy.learn_mode(0)
    mode.learn = lambda b: None
    with pytest.raises(InvalidResultError, match=r"Learn.learn returned None; expected metrics"):
        mode.forward(random_batch(policy), policy.command(Count()))
