"""Models: numpy acts as torch computes, and one vector contains all parameters."""

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.batch import Column
from flowrl.core.facts import UnsoundError
from flowrl.nodes.models.heads import DuelingHead, FreeHead, LinearHead, ScalarHead
from flowrl.nodes.models.layers import NUMPY_ACTIVATIONS
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.model import Model, ModuleModel, TorchInference
from flowrl.nodes.models.networks import Network, TrainableNetwork
from flowrl.nodes.models.recurrent import Gru

OBS = Column("float32", (4,))
INPUTS = {"obs": OBS}
HEADS = {
    "q": DuelingHead(3),
    "logits": LinearHead(2, 0.01),
    "value": ScalarHead(),
    "log_std": FreeHead(2, -0.5),
}


def observations(rows: int = 7) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32)


class Tiny(torch.nn.Module):
    """A module of your own, with a buffer."""

    def __init__(self, obs: Column, heads, width: int = 3) -> None:
        super().__init__()
        self.body = torch.nn.Linear(obs.shape[0], width)
        self.norm = torch.nn.BatchNorm1d(width)
        self.out = torch.nn.ModuleDict({k: torch.nn.Linear(width, h.n) for k, h in heads.items()})

    def forward(self, obs: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.norm(self.body(obs))
        return {name: layer(x) for name, layer in self.out.items()}


@pytest.mark.parametrize("activation", sorted(NUMPY_ACTIVATIONS))
@pytest.mark.parametrize("init", ["uniform", "orthogonal"])
@pytest.mark.parametrize("shared", [True, False])
def test_numpy_acts_as_torch_computes(activation: str, init: str, shared: bool) -> None:
    model = Mlp(hidden=[16, 8], activation=activation, init=init, shared=shared)
    module = model.build(OBS, HEADS, seed=1)
    inference_model = model.inference_model(OBS, HEADS, tuple(HEADS))
    inference_model.load(Network(module, INPUTS).weights())
    obs = observations()
    expected = module(torch.from_numpy(obs))
    for name, found in inference_model(obs).items():
        np.testing.assert_allclose(found, expected[name].detach().numpy(), rtol=1e-5, atol=1e-6)
        assert found.dtype == np.float32


@pytest.mark.parametrize(
    ("column", "obs"),
    [
        (Column("int64", n=5), np.array([0, 4, 2])),
        (Column("float32", (2, 3)), np.arange(12, dtype=np.float32).reshape(2, 2, 3)),
        (Column("uint8", (4,)), np.arange(12, dtype=np.uint8).reshape(3, 4)),
        (Column("float64", (2,)), np.ones((3, 2))),
        (Column("float32"), np.arange(3, dtype=np.float32)),
    ],
)
def test_dense_layers_accept_observations_of_every_kind(column: Column, obs) -> None:
    model = Mlp(hidden=[8])
    module = model.build(column, {"q": LinearHead(2)}, seed=0)
    inference_model = model.inference_model(column, {"q": LinearHead(2)}, ("q",))
    inference_model.load(Network(module, {"obs": column}).weights())
    expected = module(torch.from_numpy(obs))["q"].detach().numpy()
    np.testing.assert_allclose(inference_model(obs)["q"], expected, rtol=1e-5, atol=1e-6)


def test_a_network_without_hidden_layers_is_affine() -> None:
    module = Mlp(hidden=[]).build(OBS, {"q": LinearHead(2)}, seed=0)
    assert sorted(Network(module, INPUTS).weights()) == ["q.out.bias", "q.out.weight"]


def test_the_mean_of_a_dueling_head_is_the_value_of_the_state() -> None:
    module = Mlp(hidden=[8]).build(OBS, {"q": DuelingHead(3)}, seed=0)
    x = torch.relu(module.trunk.get_submodule("0")(torch.from_numpy(observations())))
    value = module.q.value(x)
    q = module(torch.from_numpy(observations()))["q"]
    torch.testing.assert_close(q.mean(1, keepdim=True), value)


def test_only_acting_parameters_are_sent() -> None:
    apart, shared = Mlp(hidden=[8], shared=False), Mlp(hidden=[8])
    heads = {"logits": LinearHead(2), "value": LinearHead(1)}
    for model, wanted in ((apart, {"logits"}), (shared, {"trunk", "logits"})):
        names = Network(model.build(OBS, heads, 0), INPUTS).weights(
            lambda name, model=model: model.is_acting_parameter(("logits",), name)
        )
        assert {name.split(".")[0] for name in names} == wanted
        model.inference_model(OBS, heads, ("logits",)).load(names)  # does not raise


def test_initial_weights_depend_on_the_seed_only() -> None:
    def weights(seed: int, poison: int) -> dict[str, np.ndarray]:
        torch.manual_seed(poison)
        return Network(Mlp().build(OBS, HEADS, seed), INPUTS).weights()

    one, same, other = weights(3, 1), weights(3, 2), weights(4, 1)
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not np.array_equal(one["trunk.0.weight"], other["trunk.0.weight"])


def test_building_does_not_change_torchs_generator() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    Mlp().build(OBS, HEADS, seed=0)
    torch.testing.assert_close(torch.rand(3), expected)


def test_orthogonal_layers_keep_lengths_and_heads_have_their_scale() -> None:
    model = Mlp(hidden=[4], init="orthogonal")
    module = model.build(OBS, {"logits": LinearHead(2, 0.01)}, seed=0)
    first, head = module.trunk.get_submodule("0").weight, module.logits.out.weight
    torch.testing.assert_close(first @ first.T, 2 * torch.eye(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(head @ head.T, 1e-4 * torch.eye(2), atol=1e-8, rtol=0)


def test_a_model_without_weights_cannot_act() -> None:
    inference_model = Mlp(hidden=[4]).inference_model(OBS, {"q": LinearHead(2)}, ("q",))
    with pytest.raises(
        RuntimeError, match="the model has no weights; load those of a learner first"
    ):
        inference_model(observations())


@pytest.mark.parametrize(
    ("trained", "acts"),
    [
        (Mlp(hidden=[8, 8]), Mlp(hidden=[8])),
        (Mlp(hidden=[8], shared=False), Mlp(hidden=[8])),
        (Mlp(hidden=[8]), Mlp(hidden=[4])),
        (Mlp(hidden=[8], normalise_obs=True), Mlp(hidden=[8])),
        (Gru(hidden=[8], size=6), Gru(hidden=[8], size=8)),
        (Mlp(hidden=[8]), Gru(hidden=[8])),
        (ModuleModel(path=f"{__name__}:Tiny", args={"width": 5}),
         ModuleModel(path=f"{__name__}:Tiny", args={"width": 1})),
    ],
)  # fmt: skip
def test_weights_of_another_network_are_refused(trained: Model, acts: Model) -> None:
    heads = {"q": LinearHead(2)}
    weights = Network(trained.build(OBS, heads, 0), INPUTS).weights()
    with pytest.raises(ValueError, match="is it that of another model"):
        acts.inference_model(OBS, heads, ("q",)).load(weights)


def test_a_module_of_your_own_is_built_learns_and_acts() -> None:
    model = ModuleModel(path=f"{__name__}:Tiny", args={"width": 5})
    heads = {"q": LinearHead(2)}
    net = TrainableNetwork(model.build(OBS, heads, seed=0), INPUTS)
    net.descend(net(torch.from_numpy(observations()))["q"].square().mean(), lr=0.1)
    inference_model = model.inference_model(OBS, heads, ("q",))
    assert isinstance(inference_model, TorchInference)
    inference_model.load(net.weights())
    expected = net.module.eval()(torch.from_numpy(observations()))["q"].detach().numpy()
    np.testing.assert_array_equal(inference_model(observations())["q"], expected)
    assert net.weights()["norm.running_mean"].any()  # buffers are sent, too


def test_all_parameters_lie_in_one_vector() -> None:
    net = Network(Mlp(hidden=[3]).build(OBS, {"q": LinearHead(2)}, seed=0), INPUTS)
    net.params.zero_()
    assert all(not p.any() for p in net.module.parameters())
    assert net.params.numel() == 4 * 3 + 3 + 3 * 2 + 2


def test_weights_are_a_copy() -> None:
    net = Network(Mlp(hidden=[3]).build(OBS, {"q": LinearHead(2)}, seed=0), INPUTS)
    before = net.weights()["q.out.bias"].copy()
    copied = net.weights()
    net.params.add_(1)
    np.testing.assert_array_equal(copied["q.out.bias"], before)


def test_a_long_gradient_is_scaled_down_and_its_norm_returned() -> None:
    net = TrainableNetwork(
        Mlp(hidden=[]).build(OBS, {"q": LinearHead(1)}, seed=0), INPUTS, max_grad_norm=0.5
    )
    obs = torch.tensor([[3.0, 0, 0, 4.0]])
    norm = net.descend(net(obs)["q"].sum(), lr=0.0)
    assert norm.item() == pytest.approx(np.sqrt(26))  # the norm of (3, 0, 0, 4) and the bias's 1
    assert net.grads.norm().item() == pytest.approx(0.5, rel=1e-4)


def test_a_short_gradient_is_not_scaled() -> None:
    net = TrainableNetwork(
        Mlp(hidden=[]).build(OBS, {"q": LinearHead(1)}, seed=0), INPUTS, max_grad_norm=50.0
    )
    net.descend(net(torch.tensor([[3.0, 0, 0, 4.0]]))["q"].sum(), lr=0.0)
    assert net.grads.norm().item() == pytest.approx(np.sqrt(26))


def test_a_frozen_copy_changes_only_by_move_towards() -> None:
    net = TrainableNetwork(Mlp(hidden=[3]).build(OBS, {"q": LinearHead(2)}, seed=0), INPUTS)
    target = net.frozen_copy()
    start = net.params.clone()
    net.params.add_(1)
    torch.testing.assert_close(target.params, start)
    target.move_towards(net, 0.25)
    torch.testing.assert_close(target.params, start + 0.25)
    target.move_towards(net)
    torch.testing.assert_close(target.params, net.params)
    assert not target(torch.zeros(1, 4))["q"].requires_grad


def test_a_restored_network_continues_with_the_same_bits() -> None:
    obs = torch.from_numpy(observations())

    def train(net: TrainableNetwork, iters: int) -> None:
        for _ in range(iters):
            net.descend((net(obs)["q"] - 1).square().mean(), lr=0.01)

    one, other = (
        TrainableNetwork(Mlp(hidden=[8]).build(OBS, {"q": LinearHead(2)}, s), INPUTS)
        for s in (0, 1)
    )
    train(one, 5)
    other.load_state_dict(one.state_dict())
    train(one, 5)
    train(other, 5)
    assert torch.equal(one.params, other.params)


def test_an_unsuitable_state_is_refused_by_name() -> None:
    net = Network(Mlp(hidden=[8]).build(OBS, {"q": LinearHead(2)}, 0), INPUTS)
    weights = net.weights()
    weights["surplus"] = weights.pop("q.out.bias")
    with pytest.raises(ValueError, match=r"lacks \['q.out.bias'\] and has unknown \['surplus'\]"):
        net.load_state_dict(weights)


def test_a_model_without_a_network_is_an_error() -> None:
    from flowrl.nodes.models.model import Model

    with pytest.raises(NotImplementedError, match="Model does not define network"):
        Model().build(OBS, {}, 0)


def not_a_module(*_: object, **__: object) -> None:
    raise AssertionError("what is no module class is never called")


def test_what_is_no_module_class_is_refused_and_not_called() -> None:
    model = ModuleModel(path=f"{__name__}:not_a_module")
    with pytest.raises(UnsoundError, match="not_a_module' is not a module class; name a subclass"):
        model.build(Column("float32", (2,)), {}, seed=0)


class Fixed(torch.nn.Module):
    """Gives what it was made for: heads of these shapes, or the first of them alone."""

    def __init__(self, obs: Any, heads: Any, alone: bool = False, **shapes: list[int]) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.alone, self.shapes = alone, shapes

    def forward(self, obs: Any) -> Any:
        found = {name: torch.ones(shape) * self.scale for name, shape in self.shapes.items()}
        return next(iter(found.values())) if self.alone else found


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"q": [3, 5], "v": [3]}, r"head 'q' has the shape \(3, 5\) for 3 rows; expected \(3, 2\)"),
        ({"q": [3, 2], "v": [3, 1]}, r"head 'v' has the shape \(3, 1\) for 3 rows; expected \(3\)"),
        ({"q": [3, 2]}, "did not return the head 'v'; it returned q; TorchHead makes"),
        (
            {"q": [3, 2], "alone": True},
            "the model returned a Tensor; return a mapping of its heads: q",
        ),
    ],
)
def test_a_module_that_returns_other_heads_is_refused(args: Any, message: str) -> None:
    heads = {"q": LinearHead(2), "v": ScalarHead()}
    model = ModuleModel(path=f"{__name__}:Fixed", args=args)
    network = Network(model.build(OBS, heads, seed=0), INPUTS, heads=heads)
    with pytest.raises(UnsoundError, match=message):
        network(torch.zeros(3, *OBS.shape))
    acting = model.inference_model(OBS, heads, ("q", "v"))
    with pytest.raises(UnsoundError, match=message):
        acting(np.zeros((3, *OBS.shape), np.float32))


def test_a_module_that_takes_other_arguments_is_refused() -> None:
    model = ModuleModel(path=f"{__name__}:Tiny", args={"widht": 5})
    with pytest.raises(UnsoundError, match=r"does not take the column of observations, .*'widht'"):
        model.build(OBS, {"q": LinearHead(2)}, seed=0)
