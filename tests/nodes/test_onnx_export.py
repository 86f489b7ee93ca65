"""A policy that was exported to ONNX acts as the policy itself."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.core.batch import Array, Column
from flowrl.core.errors import UsageError
from flowrl.core.state import Count, State
from flowrl.nodes.algorithm import Algorithm
from flowrl.nodes.greedy_policy import GreedyPolicy
from flowrl.nodes.models.cnn import Cnn
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.recurrent import Gru
from flowrl.nodes.policies.random import Random
from tests.nodes.policies.test_every_algorithm import (
    ALGORITHMS,
    DISCRETE,
    IMAGE,
    MASKED,
    NESTED,
    OBS,
    REAL,
    RECURRENT,
    learn,
    make,
    obs_rows,
    state_of,
)

TWO_CHOICES = Column("int64", (2,), low=0, high=np.array([2, 1]))


def trained(policy: Algorithm) -> GreedyPolicy:
    mode = policy.learn_mode(1)
    learn(policy, mode, range(0 if policy.action is TWO_CHOICES else 2))  # rows fit one choice
    return GreedyPolicy(policy, state_of(policy, mode))


def exported_actions(policy: GreedyPolicy, obs: Array, folder: Path) -> Array:
    """The actions of the exported policy."""
    runtime = pytest.importorskip("onnxruntime")
    path = policy.export_onnx(folder / "policy.onnx")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    leaves = {"obs": obs} if obs.dtype.names is None else {n: obs[n] for n in obs.dtype.names}
    assert names == list(leaves)
    [action] = session.run(["action"], {n: np.ascontiguousarray(a) for n, a in leaves.items()})
    found: Array = action
    return found


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in RECURRENT])
def test_every_algorithm_acts_the_same_when_exported(name: str, tmp_path: Path) -> None:
    policy, obs = trained(make(name)), obs_rows(OBS, 50)
    expected = policy.act(obs)
    found = exported_actions(policy, obs, tmp_path)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("policy", "obs"),
    [
        (lambda: make("dqn", NESTED), NESTED),
        (lambda: make("ppo", MASKED), MASKED),
        (lambda: make("qrdqn", MASKED), MASKED),
        (lambda: make("fqf", MASKED), MASKED),
        (lambda: make("sac", actor=Mlp(hidden=[8], normalise_obs=True)), OBS),
        (lambda: make("crossq", actor=Mlp(hidden=[8], norm="batch"), critic=BATCH_NORM), OBS),
        (lambda: make("ppo", action=TWO_CHOICES), OBS),
        (lambda: make("ppo", action=REAL, model=Mlp(hidden=[8], shared=False)), OBS),
        (lambda: make("dqn", IMAGE, model=Cnn(**SMALL_CNN)), IMAGE),
    ],
    ids=[
        *("nested", "mask", "quantile_mask", "shares_mask", "moments", "batch_norm"),
        *("choices", "real", "image"),
    ],
)
def test_observations_and_models_of_every_kind_are_exported(
    policy: Any, obs: Any, tmp_path: Path
) -> None:
    made = trained(policy())
    rows = obs_rows(obs, 40)
    if obs is MASKED:
        rows["action_mask"][:, 0] = 1
    expected, found = made.act(rows), exported_actions(made, rows, tmp_path)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


SMALL_CNN = {"channels": [4], "kernels": [8], "strides": [4], "hidden": [8]}
BATCH_NORM = Mlp(hidden=[8], norm="batch")


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (lambda: make("r2d2"), "its model is recurrent, and an ONNX file keeps no memory"),
        (
            lambda: make("ppo", unroll_steps=4, model=Gru(size=4)),
            "its model is recurrent, and an ONNX file keeps no memory",
        ),
        (lambda: make("ppo", eval_draws=True), "act by the step `draw`, .* leave out `eval_draws`"),
    ],
    ids=["r2d2", "recurrent ppo", "draws"],
)
def test_a_policy_that_cannot_be_exported_says_why(policy: Any, why: str, tmp_path: Path) -> None:
    made = policy()
    greedy = GreedyPolicy(made, State(made.learn_mode(0).weights(), made.command(Count())))
    with pytest.raises(UsageError, match=f"cannot be exported: .*{why}"):
        greedy.export_onnx(tmp_path / "policy.onnx")
    assert not (tmp_path / "policy.onnx").exists()


def test_a_policy_without_networks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Random cannot be exported: it has no network"):
        GreedyPolicy(Random(obs=OBS, action=DISCRETE)).export_onnx(tmp_path / "policy.onnx")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs the package 'onnx'.*pip install 'flowrl\[onnx\]'"):
        trained(make("dqn")).export_onnx(tmp_path / "policy.onnx")
