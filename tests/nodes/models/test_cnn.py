"""The convolutional network: layouts, sizes, other leaves, learning and acting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.batch import Column
from flowrl.core.facts import UnsoundError
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.models.cnn import Cnn
from flowrl.nodes.models.features import image_shapes
from flowrl.nodes.models.heads import Heads, LinearHead
from flowrl.nodes.models.saved_weights import saved_tensors
from flowrl.nodes.models.torch_modules import scaled_bytes, with_channels_as_neighbours
from flowrl.nodes.observations import NestedColumns
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.ppo import Ppo

HEADS: Heads = {"q": LinearHead(3)}
SMALL: dict[str, Any] = {"channels": [4, 4], "kernels": [3, 2], "strides": [2, 1], "hidden": [16]}


@pytest.mark.parametrize(
    ("shape", "planes"),
    [
        ((84, 84), (1, 84, 84)),
        ((4, 84, 84), (4, 84, 84)),
        ((96, 80, 3), (3, 96, 80)),
        ((4, 84, 80, 3), (12, 84, 80)),
        ((2, 3, 40, 30), (6, 40, 30)),
    ],
)
def test_frames_and_colours_are_channels(
    shape: tuple[int, ...], planes: tuple[int, int, int]
) -> None:
    column = Column("uint8", shape)
    assert image_shapes(column, "auto") == {"": planes}
    module = Cnn(hidden=[8]).build(column, HEADS, 0) if min(planes[1:]) >= 36 else None
    if module is not None:
        obs = torch.randint(255, (2, *shape), dtype=torch.uint8)
        assert module(obs)["q"].shape == (2, 3)
        assert module.features.convolutions[0][0].in_channels == planes[0]


def test_the_pixels_of_a_channel_are_those_of_the_image() -> None:
    """The same image with channels last and channels first has the same heads."""
    last = np.random.default_rng(0).integers(256, size=(2, 12, 10, 3), dtype=np.uint8)
    first = np.ascontiguousarray(np.moveaxis(last, -1, 1))
    one = Cnn(**SMALL).build(Column("uint8", (12, 10, 3)), HEADS, 0)
    two = Cnn(**SMALL, layout="first").build(Column("uint8", (3, 12, 10)), HEADS, 0)
    found = [m(torch.from_numpy(x))["q"].detach() for m, x in ((one, last), (two, first))]
    torch.testing.assert_close(*found)


def test_bytes_are_divided_by_255() -> None:
    module = Cnn(**SMALL).build(Column("uint8", (12, 10)), HEADS, 0)
    pixels = torch.randint(255, (2, 12, 10), dtype=torch.uint8)
    torch.testing.assert_close(module(pixels)["q"], module(pixels / 255)["q"])


@pytest.mark.parametrize("channels", [1, 4])
def test_channels_become_neighbours_as_torch_lays_them_out(channels: int) -> None:
    planes = torch.randint(255, (3, channels, 6, 5), dtype=torch.uint8)
    expected = planes.contiguous(memory_format=torch.channels_last)
    found = with_channels_as_neighbours(planes)
    assert found.stride() == expected.stride()
    assert torch.equal(found, expected)
    assert with_channels_as_neighbours(found) is found


def test_in_mixed_precision_bytes_become_short_numbers_at_once() -> None:
    """The numbers are those that the scaled floats would be rounded to."""
    values = torch.arange(256, dtype=torch.uint8)
    with torch.autocast("cpu", torch.bfloat16):
        found = scaled_bytes(values)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, scaled_bytes(values).bfloat16())


def test_the_network_of_the_paper_has_its_sizes() -> None:
    module = Cnn().build(Column("uint8", (4, 84, 84)), {"q": LinearHead(6)}, 0)
    assert module.features.width == 3136
    assert sum(p.numel() for p in module.parameters()) == 1_687_206  # Mnih et al. 2015, 6 actions


def test_features_of_other_leaves_are_appended_to_those_of_images() -> None:
    nested = NestedColumns(
        {
            "action_mask": Column("int8", (3,), n=2),
            "camera": Column("uint8", (9, 9, 1)),
            "map": Column("float32", (8, 8)),
            "speed": Column("float32", (2,)),
        }
    )
    model = Cnn(**SMALL, normalise_obs=True)
    module = model.build(nested, HEADS, 0)
    assert len(module.features.convolutions) == 2
    assert module.features.rest.width == 2
    obs = {
        name: torch.zeros((5, *c.shape), dtype=getattr(torch, c.dtype))
        for name, c in nested.columns.items()
    }
    obs["speed"] = torch.tensor([[k, 3.0] for k in range(5)])
    before = module(obs)["q"].detach()
    module.observe(obs)
    assert not torch.equal(before, module(obs)["q"])
    acts = model.inference_model(nested, HEADS, ["q"])
    acts.load({name: value.detach().numpy() for name, value in saved_tensors(module).items()})
    structured = nested.empty(5)
    for name, tensor in obs.items():
        structured[name] = tensor.numpy()
    np.testing.assert_allclose(acts(structured)["q"], module(obs)["q"].detach(), rtol=1e-5)


@pytest.mark.parametrize(
    ("obs", "params", "what"),
    [
        (Column("uint8", (20, 20)), {}, "the image of 20x20 pixels is too small; give smaller"),
        (
            Column("float32", (4,)),
            {},
            r"the observations have no image: float32\[4\]; take the mlp",
        ),
        (Column("uint8", (84, 84)), {"channels": [8]}, "have different lengths; give each one"),
        (
            NestedColumns({"eye": Column("uint8", (7, 84))}),
            {},
            "cnn: eye of 7x84 pixels is too small; give smaller",
        ),
    ],
)
def test_unsuitable_observations_and_layers_are_refused_before_the_run(
    obs: Any, params: Any, what: str
) -> None:
    with pytest.raises(UnsoundError, match=what) as error:
        Dqn(obs=obs, action=Column("int64", n=2), model=Cnn(**params))
    assert error.value.key == "model"


@pytest.mark.parametrize("cls", [Dqn, Ppo])
def test_policies_learn_from_an_image(cls: Any) -> None:
    envs = SerialEnvManager(env=Gymnasium(id="tests.nodes.nested_envs:Bright"), count=8, seed=1)
    spec = envs.spec()
    policy = cls(obs=spec.obs, action=spec.action, model=Cnn(**SMALL), gamma=0.0, lr=3e-3)
    collector = SampleCollector(envs=envs, policy=policy, n_sample=64, seed=1)
    learner = Learner(policy=policy, seed=1)
    for _ in range(30):
        learner.train(collector.fire(learner.state()), 64)
    greedy = policy.eval_mode(0)
    greedy.load(learner.state())
    obs = np.concatenate([envs.reset() for _ in range(4)])
    wanted = obs[:, :, :4].mean((1, 2)) < obs[:, :, 4:].mean((1, 2))
    np.testing.assert_array_equal(greedy.forward(obs)["action"], wanted)
