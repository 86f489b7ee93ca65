"""Features of observations: scaled bytes, one-hot, running moments; the same in torch and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.batch import Array, Column
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.models.chosen import Layers
from flowrl.nodes.models.features import (
    feature_encoder,
    feature_leaves,
    feature_width,
    measured_features,
)
from flowrl.nodes.models.heads import Heads, LinearHead
from flowrl.nodes.models.layers import DenseLayer
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.networks import TrainableNetwork
from flowrl.nodes.models.torch_modules import TorchFeatures
from flowrl.nodes.observations import NestedColumns
from flowrl.nodes.policies.ppo import Ppo
from tests.nodes.learn_modes import learn_from

MIXED = NestedColumns(
    {
        "action_mask": Column("int8", (4,), n=2),
        "image": Column("uint8", (2, 2)),
        "kind": Column("int64", n=3),
        "speed": Column("float32", (2,)),
    }
)
HEADS: Heads = {"q": LinearHead(2)}


def random_obs(rows: int, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    obs = MIXED.empty(rows)
    obs["action_mask"] = 1
    obs["image"] = rng.integers(256, size=(rows, 2, 2))
    obs["kind"] = rng.integers(3, size=rows)
    obs["speed"] = rng.normal(100, 20, (rows, 2))
    return obs


def tensors(obs: Array) -> dict[str, Any]:
    return {leaf: torch.from_numpy(obs[leaf].copy()) for leaf in obs.dtype.names or ()}


def test_features_are_scaled_bytes_one_hot_and_numbers_without_the_mask() -> None:
    obs = MIXED.empty(1)
    obs["image"], obs["kind"], obs["speed"] = [[0, 51], [255, 102]], 1, [3, -4]
    expected = [[0, 0.2, 1, 0.4, 0, 1, 0, 3, -4]]
    np.testing.assert_allclose(feature_encoder(MIXED, True)(obs), expected, rtol=1e-6)
    module = TorchFeatures(feature_leaves(MIXED), scale_bytes=True, normalise=False)
    np.testing.assert_allclose(module(tensors(obs)), expected, rtol=1e-6)
    assert module.width == sum(map(feature_width, feature_leaves(MIXED).values())) == 9
    assert not module.state_dict()


def test_scaling_of_bytes_can_be_turned_off() -> None:
    column, obs = Column("uint8", (2,)), np.array([[3, 9]], np.uint8)
    module = TorchFeatures({"": column}, scale_bytes=False, normalise=False)
    for found in (feature_encoder(column, False)(obs), module(torch.from_numpy(obs)).numpy()):
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, [[3, 9]])


def test_only_real_valued_features_are_normalised() -> None:
    np.testing.assert_array_equal(
        measured_features(feature_leaves(MIXED)), [False] * 7 + [True] * 2
    )


def test_acting_and_learning_normalise_equally() -> None:
    model = Layers(layers=[DenseLayer(width=8)], normalise_obs=True)
    net = TrainableNetwork(model.build(MIXED, HEADS, 3), {"obs": MIXED})
    acts = model.inference_model(MIXED, HEADS, ["q"])
    for seed in range(3):
        acts.load({k: v for k, v in net.weights().items() if model.is_acting_parameter(["q"], k)})
        obs = random_obs(50, seed)
        with torch.no_grad():
            heads = net(tensors(obs))["q"].numpy()
        np.testing.assert_allclose(acts(obs)["q"], heads, rtol=1e-4, atol=1e-5)
        net.observe(tensors(obs))


def test_normalised_features_have_mean_0_and_deviation_1() -> None:
    module = TorchFeatures(feature_leaves(MIXED), scale_bytes=True, normalise=True)
    obs = random_obs(500)
    for part in np.array_split(obs, 7):
        module.observe(tensors(part))
    found = module(tensors(obs)).numpy()[:, -2:]
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(found.std(0), 1, rtol=1e-5)
    far = random_obs(1)
    far["speed"] = 1e9
    np.testing.assert_array_equal(module(tensors(far))[0, -2:], 10)


def test_moments_are_part_of_the_weights_and_of_checkpoints() -> None:
    model = Layers(layers=[DenseLayer(width=8)], normalise_obs=True)
    net, other = (
        TrainableNetwork(model.build(MIXED, HEADS, seed), {"obs": MIXED}) for seed in (1, 2)
    )
    net.observe(tensors(random_obs(20)))
    moments = [f"features.moments.{name}" for name in ("count", "mean", "squares")]
    assert set(moments) <= set(net.weights())
    other.load_state_dict(net.state_dict())
    np.testing.assert_array_equal(other.weights()[moments[1]], net.weights()[moments[1]])
    frozen_copy = net.frozen_copy()
    net.observe(tensors(random_obs(20, 5)))
    assert not np.array_equal(frozen_copy.weights()[moments[1]], net.weights()[moments[1]])
    frozen_copy.move_towards(net)
    np.testing.assert_array_equal(frozen_copy.weights()[moments[1]], net.weights()[moments[1]])


@pytest.mark.parametrize("iters", [1, 3])
def test_a_batch_is_learned_with_the_moments_that_acted(iters: int) -> None:
    """Acting and the first gradient step have the same likelihoods, so their ratio is 1."""
    envs = SerialEnvManager(env=Gymnasium(id="CartPole-v1"), count=4)
    spec = envs.spec()
    model = Mlp(hidden=[16], normalise_obs=True)
    policy = Ppo(obs=spec.obs, action=spec.action, model=model, lr=1e-9, epochs=1)
    collector = SampleCollector(envs=envs, policy=policy, n_sample=64)
    learner = Learner(policy=policy)
    for _ in range(iters):
        result = learn_from(learner.mode, collector.fire(learner.state()))
        assert float(result.metrics["kl"]) < 1e-9
    assert learner.state().arrays["features.moments.count"] == 64 * iters
