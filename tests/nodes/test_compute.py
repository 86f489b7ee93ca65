"""Settings of how a learner computes: mixed precision, compiled passes, accumulated gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flowrl
from flowrl.core.batch import Batch, Column
from flowrl.core.facts import UnsoundError
from flowrl.core.state import Count
from flowrl.nodes import Cnn, Dqn, Learner, Mlp, compute
from flowrl.nodes.compute import Compute
from flowrl.nodes.models.heads import LinearHead
from flowrl.nodes.models.optimisers import Sgd
from tests.nodes.learn_modes import DISCRETE, OBS, learn_from, rows, same_bits
from tests.nodes.policies.test_every_algorithm import (
    ALGORITHMS,
    each_algorithm,
    make,
    random_batch,
)
from tests.nodes.toy_policies import Toy

BF16 = Compute(precision="bf16")


def learn(policy: Any, mode: Any, iters: int) -> None:
    for seed in range(iters):
        mode.forward(random_batch(policy, seed), policy.command(Count()))


# Mixed precision


@each_algorithm
def test_every_algorithm_learns_in_mixed_precision_or_refuses(name: str) -> None:
    policy = make(name)
    if "precision" in policy.refused_settings:
        pytest.skip("refuses it")
    mode: Any = policy.learn_mode(0, BF16)
    plain = policy.learn_mode(0)
    before, batch = mode.state_dict(), random_batch(policy)
    found = mode.forward(batch, policy.command(Count())).metrics
    expected = plain.forward(batch, policy.command(Count())).metrics
    for metric, value in expected.items():
        assert float(found[metric]) == pytest.approx(float(value), rel=0.2, abs=0.1), metric
    after = mode.state_dict()
    assert not same_bits(before, after)
    assert not same_bits(after, plain.state_dict())  # otherwise nothing was in bfloat16
    assert {array.dtype.name for array in mode.weights().values()} <= {"float32", "int64"}


def test_heads_of_mixed_passes_are_in_float32() -> None:
    mode: Any = Dqn(obs=OBS, action=DISCRETE).learn_mode(0, BF16)
    seen = []
    mode.q.module.register_forward_hook(lambda m, x, y: seen.append(y["q"].dtype))
    assert mode.q(torch.zeros(2, 4))["q"].dtype == torch.float32
    assert mode.q_target(torch.zeros(2, 4))["q"].dtype == torch.float32
    assert seen == [torch.bfloat16]


# Accumulated gradients


def test_two_accumulated_gradients_are_that_of_both_batches_together() -> None:
    params = {"optimiser": Sgd(), "max_grad_norm": None, "model": Mlp(hidden=[16])}
    policy = Dqn(obs=OBS, action=DISCRETE, lr=0.1, **params)
    whole = rows(64)
    halves = [Batch({n: whole[n][part] for n in whole}) for part in (slice(32), slice(32, 64))]
    one, two = policy.learn_mode(0), policy.learn_mode(0, Compute(accumulate=2))
    start = two.weights()
    learn_from(one, whole)
    learn_from(two, halves[0])
    assert same_bits(two.weights(), start)
    learn_from(two, halves[1])
    for name, array in one.weights().items():
        np.testing.assert_allclose(two.weights()[name], array, atol=1e-6)


@each_algorithm
def test_a_state_between_two_steps_continues_with_the_same_bits(name: str) -> None:
    policy = make(name)
    if "accumulate" in policy.refused_settings:
        pytest.skip("refuses it")
    whole, half = (policy.learn_mode(1, Compute(accumulate=3)) for _ in range(2))
    learn(policy, whole, 4)
    learn(policy, half, 2)
    resumed = policy.learn_mode(2, Compute(accumulate=3))
    resumed.load_state_dict(half.state_dict())
    for seed in (2, 3):
        resumed.forward(random_batch(policy, seed), policy.command(Count()))
    assert same_bits(whole.state_dict(), resumed.state_dict())


def test_a_checkpoint_can_be_continued_with_or_without_accumulating() -> None:
    policy = Dqn(obs=OBS, action=DISCRETE)
    plain, accumulating = policy.learn_mode(0), policy.learn_mode(1, Compute(accumulate=2))
    learn_from(plain, rows())
    accumulating.load_state_dict(plain.state_dict())
    assert same_bits(accumulating.weights(), plain.weights())
    for _ in range(2):
        learn_from(accumulating, rows())
    assert not same_bits(accumulating.weights(), plain.weights())
    plain.load_state_dict(accumulating.state_dict())
    assert same_bits(accumulating.weights(), plain.weights())


# Compiled passes


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own modules
def test_compiled_passes_learn_the_same_up_to_rounding() -> None:
    policy = Dqn(obs=OBS, action=DISCRETE, model=Mlp(hidden=[16]))
    plain, compiled = policy.learn_mode(0), policy.learn_mode(0, Compute(compile=True))
    for seed in range(5):
        learn_from(plain, rows(seed=seed))
        learn_from(compiled, rows(seed=seed))
    assert compiled.weights().keys() == plain.weights().keys()
    for name, array in plain.weights().items():
        np.testing.assert_allclose(compiled.weights()[name], array, atol=1e-5)


# Images


@pytest.mark.parametrize("shape", [(4, 36, 36), (36, 36, 3), (2, 36, 36, 3), (36, 36)])
def test_images_lie_in_memory_with_their_channels_last(shape: tuple[int, ...]) -> None:
    column = Column("uint8", shape)
    module = Cnn(channels=[4], kernels=[8], strides=[4], hidden=[8]).build(
        column, {"q": LinearHead(2)}, 0
    )
    seen = []
    module.features.convolutions[0][0].register_forward_hook(lambda m, x, y: seen.append(x[0]))
    module(torch.zeros((5, *shape), dtype=torch.uint8))
    assert seen[0].is_contiguous(memory_format=torch.channels_last)


# What a graph says


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"precision": "fp8"}, "precision is 'fp8'; expected 'float32' or 'bf16'"),
        ({"accumulate": 0}, "accumulate is 0; expected greater than or equal to 1"),
        ({"compile": "yes"}, "compile is 'yes'; expected a boolean"),
    ],
)
def test_wrong_settings_are_problems_of_the_graph(setting: Any, message: str) -> None:
    found = flowrl.load({"extends": "cartpole_dqn", "nodes": {"learner": setting}}).check()
    assert [message in str(p) for p in found.problems] == [True]


@pytest.mark.parametrize("name", ["precision", "accumulate"])
def test_settings_that_an_algorithm_does_not_take_are_problems(name: str) -> None:
    value = {"precision": "bf16", "accumulate": 2}[name]
    found = flowrl.load({"extends": "cartpole_trpo", "nodes": {"learner": {name: value}}}).check()
    [problem] = map(str, found.problems)
    assert (
        f"Trpo cannot learn with `{name}: {value}`: {ALGORITHMS['trpo'].refused_settings[name]}"
        in problem
    )
    assert f"leave out `{name}`" in problem


def test_compiling_without_a_compiler_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute.shutil, "which", lambda name: None)
    found = flowrl.load("cartpole_dqn", {"learner.compile": True}).check()
    [problem] = map(str, found.problems)
    assert "torch needs a C++ compiler to compile for CPUs; install g++, or leave out" in problem


def test_a_policy_that_is_no_algorithm_takes_no_settings() -> None:
    toy = Toy(obs=OBS, action=DISCRETE)
    Learner(policy=toy).train(rows())
    with pytest.raises(
        UnsoundError, match=r"Toy has no setting of how it computes.*leave out `acc"
    ):
        Learner(policy=toy, accumulate=2)


def test_a_learner_passes_its_settings_to_the_learn_mode(tmp_path: Path) -> None:
    policy = Dqn(obs=OBS, action=DISCRETE, model=Mlp(hidden=[8]))
    made: Any = Learner(policy=policy, precision="bf16", accumulate=2).mode
    assert made.compute == Compute(precision="bf16", accumulate=2)
    batch: Batch = rows()
    made.forward(batch, policy.command(Count()))
