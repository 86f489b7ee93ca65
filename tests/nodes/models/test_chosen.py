"""Models whose layers the graph chooses: `auto`, and `layers` from YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.core.batch import Column
from flowrl.core.facts import UnsoundError
from flowrl.core.state import State
from flowrl.nodes.models.chosen import Auto, Layers
from flowrl.nodes.models.cnn import Cnn
from flowrl.nodes.models.heads import LinearHead
from flowrl.nodes.models.layers import ConvLayer, DenseLayer, FlattenLayer, GruLayer
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.observations import NestedColumns
from flowrl.nodes.policies.dqn import Dqn

VECTOR, IMAGE = Column("float32", (4,)), Column("uint8", (4, 84, 84))
NESTED = NestedColumns({"camera": IMAGE, "speed": VECTOR})
THREE = Column("int64", n=3)


def test_auto_is_an_mlp_with_its_settings_unless_there_is_an_image() -> None:
    auto = Auto(hidden=[7], activation="tanh", noisy=True)
    chosen = auto.for_obs(VECTOR)
    assert type(chosen) is Mlp
    assert chosen.config.model_dump() == auto.config.model_dump()


@pytest.mark.parametrize("obs", [IMAGE, NESTED], ids=["plain", "nested"])
def test_auto_is_a_cnn_for_images(obs: Any) -> None:
    chosen = Auto(hidden=[7], noisy=True, normalise_obs=True).for_obs(obs)
    assert type(chosen) is Cnn
    assert (chosen.config.noisy, chosen.config.normalise_obs) == (True, True)
    assert chosen.config.hidden == [512]
    policy = Dqn(obs=obs, action=THREE)
    assert type(policy.nets["q"].model) is Cnn


@pytest.mark.parametrize("obs", [IMAGE, NESTED], ids=["plain", "nested"])
def test_settings_of_auto_that_its_cnn_does_not_have_are_refused(obs: Any) -> None:
    for given in ({"hidden": [7]}, {"activation": "tanh"}):
        what = (
            f"`{next(iter(given))}` of the model has no effect: observations are images, for which"
        )
        with pytest.raises(UnsoundError, match=what):
            Dqn(obs=obs, action=THREE, model=Auto(**given))
    Dqn(obs=obs, action=THREE, model=Auto(noisy=True, normalise_obs=True))
    Dqn(obs=VECTOR, action=THREE, model=Auto(hidden=[7], activation="tanh"))


def test_auto_flattens_bytes_that_are_no_brightness() -> None:
    assert type(Auto(scale_bytes=False).for_obs(Column("uint8", (3, 3)))) is Mlp


def test_an_mlp_refuses_an_image_and_says_how_to_go_on() -> None:
    what = (
        r"the mlp would flatten the image camera; take `model: cnn` \(or `auto`\), "
        "or write `scale_bytes: false` if the bytes are no brightness"
    )
    with pytest.raises(UnsoundError, match=what) as error:
        Dqn(obs=NESTED, action=THREE, model=Mlp())
    assert error.value.key == "model"
    Dqn(obs=NESTED, action=THREE, model=Mlp(scale_bytes=False))
    Dqn(obs=NESTED, action=THREE, model=Cnn())


@pytest.mark.parametrize(
    ("model", "obs", "what"),
    [
        (
            Layers(layers=[GruLayer(size=3)], shared=False),
            VECTOR,
            "in a trunk that all heads share; leave out `shared: false`",
        ),
        (
            Layers(images=[ConvLayer(channels=2, kernel=3)]),
            VECTOR,
            "the observations have no image: .*; leave out `images`",
        ),
        (Layers(images=[DenseLayer(width=3)]), IMAGE, "put a layer `flatten` before it"),
        (
            Layers(layers=[ConvLayer(channels=2, kernel=3)]),
            VECTOR,
            "a convolution needs an image",
        ),
    ],
)
def test_layers_that_do_not_fit_are_refused_before_the_run(model: Any, obs: Any, what: str) -> None:
    with pytest.raises(UnsoundError, match=what) as error:
        Dqn(obs=obs, action=THREE, model=model)
    assert error.value.key == "model"


def test_listed_layers_of_images_and_of_the_trunk_are_built_in_their_order() -> None:
    model = Layers(
        images=[ConvLayer(channels=2, kernel=8, stride=4), FlattenLayer(), DenseLayer(width=5)],
        layers=[DenseLayer(width=6, norm=True), DenseLayer(width=7)],
    )
    module = model.build(NESTED, {"q": LinearHead(3)}, 0)
    [stack] = module.features.convolutions
    assert [type(layer).__name__ for layer in stack] == ["TorchConv", "Flatten", "TorchDense"]
    assert module.features.width == 5 + 4
    assert [layer.out_features for layer in module.trunk] == [6, 7]


GRAPH = """
extends: cartpole_dqn
policy:
  model:
    type: layers
    layers:
      - {type: dense, width: 16, activation: tanh, norm: true}
      - {type: dense, width: 8, noisy: true}
nodes: {evaluator: {episodes: 2}}
"""


def test_a_graph_lists_its_layers(tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text(GRAPH)
    graph = flowrl.load(tmp_path / "g.yaml")
    assert graph.check().problems == []
    digests = [
        graph.run(train_iters=12, out=tmp_path / place, placement=place).digest
        for place in ("serial", "threads")
    ]
    assert digests[0] == digests[1]


def test_a_wrong_layer_of_a_graph_is_named(tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text(
        GRAPH.replace("{type: dense, width: 8", "{type: dens, width: 8")
    )
    [problem] = flowrl.load(tmp_path / "g.yaml").check().problems
    assert "unknown layer type 'dens'" in problem.what
    assert "did you mean 'dense'" in problem.hint


def test_noise_of_acting_is_saved_with_the_mode() -> None:
    policy = Dqn(obs=VECTOR, action=THREE, model=Mlp(hidden=[8], noisy=True), epsilon=0.0)
    state = State(policy.learn_mode(0).weights(), {"epsilon": 0.0})
    one, other, third = (policy.collect_mode(seed) for seed in (1, 2, 1))
    obs = np.random.default_rng(0).standard_normal((200, 4)).astype(np.float32)
    for mode in (one, other, third):
        mode.load(state)
    first = one.forward(obs)["action"]
    assert first.tolist() == third.forward(obs)["action"].tolist()
    saved = one.state_dict()
    after = one.forward(obs)["action"]
    assert after.tolist() != first.tolist()
    other.load_state_dict(saved)
    assert other.forward(obs)["action"].tolist() == after.tolist()
    greedy = policy.eval_mode(0)
    greedy.load(state)
    assert greedy.forward(obs)["action"].tolist() == greedy.forward(obs)["action"].tolist()


def test_a_layer_by_hand_is_an_object_of_its_class() -> None:
    what = r"layers has 'dense'; expected objects of subclasses of Layer, such as DenseLayer\(…\)"
    with pytest.raises(TypeError, match=what):
        Dqn(obs=VECTOR, action=THREE, model=Layers(layers=["dense"]))
