"""Distributions: numpy to act and torch to learn agree with each other, and with torch's own distributions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.core.batch import Batch, Column
from flowrl.core.facts import UnsoundError
from flowrl.nodes.distributions import Categorical, DiagonalGaussian, distribution_of
from tests.nodes.learn_modes import tensors

seeds = st.integers(0, 2**32)


def logits_of(seed: int, rows: int, n: int) -> np.ndarray:
    return (3 * np.random.default_rng(seed).standard_normal((rows, n))).astype(np.float32)


def as_torch(out: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in out.items()}


@settings(deadline=None)
@given(seeds, st.integers(1, 20), st.integers(1, 9))
def test_categorical_agrees_with_torch(seed: int, rows: int, n: int) -> None:
    mine = distribution_of(Column("int64", n=n))
    out = {"logits": logits_of(seed, rows, n)}
    sampled_actions = mine.sample(out, np.random.default_rng(seed))
    logp, entropy = mine.logp_entropy(as_torch(out), tensors(Batch(sampled_actions)))
    theirs = torch.distributions.Categorical(logits=torch.from_numpy(out["logits"]))
    wanted = theirs.log_prob(torch.from_numpy(sampled_actions["action"].copy()))
    torch.testing.assert_close(logp, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(entropy, theirs.entropy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(sampled_actions["logp"], wanted, rtol=1e-4, atol=1e-5)


@settings(deadline=None)
@given(seeds, st.integers(1, 20), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_multi_categorical_agrees_with_torch(seed: int, rows: int, counts: list[int]) -> None:
    high = tuple(float(n - 1) for n in counts)
    mine = distribution_of(Column("int64", (len(counts),), low=(0.0,) * len(counts), high=high))
    out = {"logits": logits_of(seed, rows, sum(counts))}
    sampled_actions = mine.sample(out, np.random.default_rng(seed))
    logp, entropy = mine.logp_entropy(as_torch(out), tensors(Batch(sampled_actions)))
    parts = torch.from_numpy(out["logits"]).split(counts, 1)
    theirs = [torch.distributions.Categorical(logits=part) for part in parts]
    action = torch.from_numpy(sampled_actions["action"].copy())
    wanted = sum(d.log_prob(action[:, k]) for k, d in enumerate(theirs))
    torch.testing.assert_close(logp, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(entropy, sum(d.entropy() for d in theirs), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(sampled_actions["logp"], wanted, rtol=1e-4, atol=1e-5)
    likeliest = torch.stack([part.argmax(1) for part in parts], 1)
    np.testing.assert_array_equal(mine.mode(out)["action"], likeliest)


def test_binary_choices_are_multi_categorical() -> None:
    mine = distribution_of(Column("int8", (2, 2), n=2))
    assert mine.heads["logits"].n == 8
    out = {"logits": np.tile(np.float32([0, 9, 9, 0]), (5, 2))}
    found = mine.mode(out)["action"]
    assert found.dtype == np.int8
    np.testing.assert_array_equal(found, [[[1, 0], [1, 0]]] * 5)


@settings(deadline=None)
@given(seeds, st.integers(1, 20), st.lists(st.integers(1, 3), min_size=0, max_size=2))
def test_diagonal_gaussian_agrees_with_torch(seed: int, rows: int, shape: list[int]) -> None:
    mine = distribution_of(Column("float32", tuple(shape), low=-1.0, high=1.0))
    n = int(np.prod(shape, dtype=int))
    out = {"mean": logits_of(seed, rows, n), "log_std": logits_of(seed + 1, rows, n) / 3}
    sampled_actions = mine.sample(out, np.random.default_rng(seed))
    logp, entropy = mine.logp_entropy(as_torch(out), tensors(Batch(sampled_actions)))
    mean, std = torch.from_numpy(out["mean"]), torch.from_numpy(out["log_std"]).exp()
    theirs = torch.distributions.Independent(torch.distributions.Normal(mean, std), 1)
    wanted = theirs.log_prob(torch.from_numpy(sampled_actions["unclipped"].copy()))
    torch.testing.assert_close(logp, wanted, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(entropy, theirs.entropy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(sampled_actions["logp"], wanted, rtol=1e-3, atol=1e-3)
    assert sampled_actions["action"].shape == (rows, *shape)
    flat = sampled_actions["action"].reshape(rows, -1)
    np.testing.assert_array_equal(flat, np.clip(sampled_actions["unclipped"], -1, 1))


def test_likelihoods_of_unrolls_are_those_of_their_steps() -> None:
    """Heads and actions may have any leading dimensions."""
    several = Column("int64", (2,), low=(0.0, 0.0), high=(1.0, 2.0))
    for column in (Column("int64", n=3), several, Column("float32", (2,), low=-1.0, high=1.0)):
        mine = distribution_of(column)
        n = mine.heads["logits"].n if "logits" in mine.heads else 2
        out = {name: logits_of(1, 12, n) for name in mine.heads}
        drawn = mine.sample(out, np.random.default_rng(0))
        flat = mine.logp_entropy(as_torch(out), tensors(Batch(drawn)))
        unrolled = {name: x.reshape(3, 4, *x.shape[1:]) for name, x in drawn.items()}
        heads = {name: x.reshape(3, 4, -1) for name, x in out.items()}
        found = mine.logp_entropy(as_torch(heads), tensors(Batch(unrolled)))
        for one, other in zip(found, flat, strict=True):
            torch.testing.assert_close(one, other.view(3, 4))


def test_divergences_agree_with_torch() -> None:
    logits = [torch.from_numpy(logits_of(seed, 5, 5)) for seed in (1, 2)]
    p, q = (torch.distributions.Categorical(logits=x) for x in logits)
    one = distribution_of(Column("int64", n=5))
    found = one.divergence(*({"logits": x} for x in logits))
    torch.testing.assert_close(found, torch.distributions.kl_divergence(p, q))
    several = distribution_of(Column("int64", (2,), low=(0.0, 0.0), high=(1.0, 2.0)))
    parts = [
        [torch.distributions.Categorical(logits=x) for x in y.split([2, 3], 1)] for y in logits
    ]
    wanted = sum(torch.distributions.kl_divergence(a, b) for a, b in zip(*parts, strict=True))
    torch.testing.assert_close(several.divergence(*({"logits": x} for x in logits)), wanted)
    pairs = [(mean, x.flip(0) / 3) for mean, x in zip(logits, logits, strict=True)]
    p, q = (
        torch.distributions.Independent(torch.distributions.Normal(mean, std.exp()), 1)
        for mean, std in pairs
    )
    normal = distribution_of(Column("float32", (5,)))
    found = normal.divergence(*({"mean": mean, "log_std": std} for mean, std in pairs))
    torch.testing.assert_close(found, torch.distributions.kl_divergence(p, q), rtol=1e-4, atol=1e-4)


def test_the_mode_is_drawn_most_often() -> None:
    mine, logits = Categorical(Column("int64", n=4)), np.log([[0.1, 0.5, 0.15, 0.25]])
    out = {"logits": np.repeat(logits, 2000, 0).astype(np.float32)}
    sampled_actions = mine.sample(out, np.random.default_rng(0))["action"]
    assert set(mine.mode(out)["action"]) == {np.bincount(sampled_actions).argmax()} == {1}


def test_the_mode_of_normals_is_their_mean_within_the_bounds() -> None:
    mine = DiagonalGaussian(Column("float32", (3,), low=(-1.0, -1.0, 0.5), high=(1.0, 2.0, 3.0)), 1)
    out = {"mean": np.array([[0.2, 5.0, 0.0]], np.float32), "log_std": np.zeros((1, 3), np.float32)}
    np.testing.assert_array_equal(mine.mode(out)["action"], np.array([[0.2, 2.0, 0.5]], np.float32))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_actions_have_the_dtype_and_shape_of_their_column(dtype: str) -> None:
    column = Column(dtype, (2, 2), low=-1.0, high=1.0)
    mine = distribution_of(column)
    out = {"mean": np.zeros((5, 4), np.float32), "log_std": np.zeros((5, 4), np.float32)}
    for columns in (mine.sample(out, np.random.default_rng(0)), mine.mode(out)):
        assert columns["action"].shape == (5, 2, 2)
        assert columns["action"].dtype == dtype


def test_samples_have_the_declared_columns() -> None:
    several = Column("int64", (2,), low=(0.0, 0.0), high=(1.0, 0.0))
    for column in (Column("int64", n=3), Column("float32", (2,)), several):
        mine = distribution_of(column)
        heads = {"logits": 3, "mean": 2, "log_std": 2}
        out = {name: np.zeros((4, heads[name]), np.float32) for name in mine.heads}
        sampled_actions = mine.sample(out, np.random.default_rng(0))
        assert set(sampled_actions) == {*mine.columns, "logp"}
        for name, column in mine.columns.items():
            assert (str(sampled_actions[name].dtype), sampled_actions[name].shape[1:]) == (
                column.dtype,
                column.shape,
            )


def test_the_initial_deviation_is_that_of_the_parameter() -> None:
    column = Column("float32", (2,))
    one, wide = (distribution_of(column, std).heads["log_std"] for std in (1.0, np.e))
    assert (one.value, wide.value) == pytest.approx((0.0, 1.0))


@pytest.mark.parametrize(
    "column",
    [
        Column("int64", (2,)),
        Column("int64"),
        Column("int64", (2,), low=(1.0, 0.0), high=(2.0, 2.0)),
        Column("int64", (1,), low=(0.0,)),
    ],
)
def test_actions_without_a_distribution_are_refused_with_a_hint(column: Column) -> None:
    with pytest.raises(
        UnsoundError, match=r"no distribution for actions .*; wrap the env"
    ) as error:
        distribution_of(column)
    assert error.value.key == "policy"
