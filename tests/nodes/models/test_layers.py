"""Layers and heads: acting in numpy gives what the torch modules compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.batch import Column
from flowrl.core.facts import UnsoundError
from flowrl.nodes.models.chosen import Layers
from flowrl.nodes.models.heads import (
    DuelingHead,
    FreeHead,
    Head,
    ImplicitHead,
    LinearHead,
    ScalarHead,
)
from flowrl.nodes.models.layers import (
    NUMPY_ACTIVATIONS,
    ConvLayer,
    DenseLayer,
    FlattenLayer,
    GruLayer,
    Layer,
    LstmLayer,
)
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.model import Model, TorchInference
from flowrl.nodes.models.numpy_model import NumpyModel, acting_fractions
from flowrl.nodes.models.recurrent import Gru, Lstm
from flowrl.nodes.models.saved_weights import saved_tensors
from flowrl.nodes.models.torch_layers import NOISE_SCALE, draw_noise

OBS = Column("float32", (4,))
HEADS = {"q": LinearHead(2)}


def observations(rows: int = 6) -> Any:
    return np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32)


def arrays(module: torch.nn.Module) -> dict[str, Any]:
    """The weights of a module, each moved a little, so that none is still 0 or 1."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in module.parameters():
            value.add_(torch.randn(value.shape, generator=generator) * 0.3)
    return {name: value.detach().numpy().copy() for name, value in saved_tensors(module).items()}


def in_numpy(model: Model, heads: Any, rng: Any = None) -> tuple[torch.nn.Module, Any]:
    """A module, and the function of the same weights that acts."""
    module = model.build(OBS, heads, seed=1)
    act = model.inference_model(OBS, heads, tuple(heads), rng)
    assert isinstance(act, NumpyModel)
    act.load(arrays(module))
    return module, act


DENSE: dict[str, dict[str, Any]] = {
    **{name: {"activation": name} for name in NUMPY_ACTIVATIONS},
    "norm": {"norm": True, "activation": "tanh"},
    "noisy": {"noisy": True, "activation": "tanh"},
    "noisy, norm": {"noisy": True, "norm": True},
}


@pytest.mark.parametrize("params", DENSE.values(), ids=DENSE)
def test_a_dense_layer_acts_as_it_learns(params: dict[str, Any]) -> None:
    layers = [FlattenLayer(), DenseLayer(width=7, **params), DenseLayer(width=5)]
    module, act = in_numpy(Layers(layers=layers), HEADS)
    expected = module(torch.from_numpy(observations()))["q"].detach().numpy()
    np.testing.assert_allclose(act(observations())["q"], expected, rtol=1e-5, atol=1e-6)


def test_layer_norm_is_that_of_torch() -> None:
    module = DenseLayer(width=7, norm=True, activation="none").module((4,), "uniform")
    x = torch.from_numpy(observations())
    affine = torch.nn.functional.linear(x, module.weight, module.bias)
    torch.testing.assert_close(module(x), torch.nn.functional.layer_norm(affine, (7,)))


def test_a_layer_without_a_step_in_numpy_acts_in_torch() -> None:
    model = Mlp(hidden=[5], activation="gelu")
    assert model.acts_in_torch(OBS, HEADS)
    assert not Mlp(hidden=[5]).acts_in_torch(OBS, HEADS)
    act = model.inference_model(OBS, HEADS, ("q",))
    assert isinstance(act, TorchInference)
    module = model.build(OBS, HEADS, 1)
    act.load(arrays(module))
    expected = module(torch.from_numpy(observations()))["q"].detach().numpy()
    np.testing.assert_allclose(act(observations())["q"], expected, rtol=1e-5, atol=1e-6)


# Noise


def noisy_heads(rng: Any) -> tuple[torch.nn.Module, Any]:
    """A network of one noisy layer, the head, in torch and in numpy."""
    model = Mlp(hidden=[], noisy=True)
    module = model.build(OBS, HEADS, 1)
    act = model.inference_model(OBS, HEADS, ("q",), rng)
    act.load({name: value.detach().numpy() for name, value in saved_tensors(module).items()})
    return module, act


@pytest.mark.slow
def test_noise_has_the_mean_and_deviation_of_factorised_noise() -> None:
    """y = mu(x) + sum_i sigma x_i e_i e_j + sigma e_j, where e = sign(z) sqrt|z|, so E e = 0 and E e^2 = E|z|."""
    module, act = noisy_heads(np.random.default_rng(5))
    x = np.tile(observations(1), (40_000, 1))
    without = module(torch.from_numpy(x[:1]))["q"].detach().numpy()
    variance = 2 / np.pi  # (E|z|)^2, of e_i^2 e_j^2; the bias has E|z| alone
    sigma = NOISE_SCALE / 2  # of 4 inputs
    expected = sigma * np.sqrt(variance * np.square(x[0]).sum() + np.sqrt(variance))
    drawn = act(x)["q"]
    np.testing.assert_allclose(drawn.mean(0), without[0], atol=0.01)
    np.testing.assert_allclose(drawn.std(0), expected, rtol=0.03)
    generator, found = torch.Generator().manual_seed(1), []
    for _ in range(3000):
        draw_noise(module, generator)
        found.append(module(torch.from_numpy(x[:1]))["q"].detach()[0])
    learned = torch.stack(found)
    np.testing.assert_allclose(learned.mean(0), without[0], atol=0.05)
    np.testing.assert_allclose(learned.std(0), expected, rtol=0.1)


def test_noise_is_drawn_from_the_given_generator_for_each_row() -> None:
    x, found = np.tile(observations(1), (3, 1)), []
    for seed in (1, 1, 2):
        act = noisy_heads(np.random.default_rng(seed))[1]
        found.append(act(x)["q"])
    assert found[0].tobytes() == found[1].tobytes() != found[2].tobytes()
    assert len(np.unique(found[0][:, 0])) == 3


def test_without_a_generator_there_is_no_noise() -> None:
    module, act = noisy_heads(None)
    expected = module(torch.from_numpy(observations()))["q"].detach().numpy()
    np.testing.assert_allclose(act(observations())["q"], expected, rtol=1e-5, atol=1e-6)


# Layers with memory


def reference_unroll(kind: str, weights: Any, x: Any, memory: Any, begins: Any) -> Any:
    """The outputs and memories (N, T, …) of torch's own cells, one step after another."""
    size = {"gru": memory.shape[1], "lstm": memory.shape[1] // 2}[kind]
    cell = {"gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell}[kind](x.shape[2], size)
    cell.load_state_dict({name: torch.from_numpy(a) for name, a in weights.items()})
    state, outputs, memories = torch.from_numpy(memory), [], []
    for t in range(x.shape[1]):
        state = torch.where(torch.from_numpy(begins[:, t : t + 1]), 0.0, state)
        step = torch.from_numpy(x[:, t])
        with torch.no_grad():
            if kind == "gru":
                state = cell(step, state)
            else:
                state = torch.cat(cell(step, state.chunk(2, 1)), 1)
        outputs.append(state[:, :size])
        memories.append(state)
    return torch.stack(outputs, 1).numpy(), torch.stack(memories, 1).numpy()


@pytest.mark.parametrize(
    ("kind", "layer"), [("gru", GruLayer(size=5)), ("lstm", LstmLayer(size=5))]
)
def test_recurrent_layers_equal_torchs_cells_over_an_unroll(kind: str, layer: Layer) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 7, 4)).astype(np.float32)
    memory = rng.standard_normal((3, layer.memory_size)).astype(np.float32)
    begins = rng.random((3, 7)) < 0.3
    module = layer.module((4,), "uniform")
    weights = arrays(module)
    expected = reference_unroll(kind, weights, x, memory, begins)
    with torch.no_grad():
        learned = module(*map(torch.from_numpy, (x, memory, begins)))
    for found, wanted in zip(learned, expected, strict=True):
        np.testing.assert_allclose(found.numpy(), wanted, atol=1e-6)
    act: Any = layer.numpy_layer((4,))
    act.load(weights)
    for t in range(7):
        outputs, memory = act.step(x[:, t], np.where(begins[:, t : t + 1], np.float32(0), memory))
        np.testing.assert_allclose(outputs, expected[0][:, t], atol=1e-6)
        np.testing.assert_allclose(memory, expected[1][:, t], atol=1e-6)


@pytest.mark.parametrize(
    "model",
    [
        Gru(hidden=[6], size=5),
        Lstm(hidden=[6], size=5),
        Layers(layers=[LstmLayer(size=4), DenseLayer(width=6), GruLayer(size=3)]),
    ],
    ids=["gru", "lstm", "two layers with memory"],
)
def test_recurrent_models_act_as_they_learn(model: Model) -> None:
    module, act = in_numpy(model, {"q": LinearHead(2), "v": ScalarHead()})
    rng = np.random.default_rng(2)
    obs = rng.standard_normal((3, 5, 4)).astype(np.float32)
    [column] = model.memory_columns().values()
    memory = rng.standard_normal((3, *column.shape)).astype(np.float32)
    begins = torch.zeros((3, 5), dtype=torch.bool)
    with torch.no_grad():
        heads = module(torch.from_numpy(obs.reshape(15, 4)), torch.from_numpy(memory), begins)
    for t in range(5):
        out = act(obs[:, t], memory)
        memory = out["memory"]
        for name in ("q", "v", "memory"):
            wanted = heads[name].reshape(3, 5, *heads[name].shape[1:])[:, t].numpy()
            np.testing.assert_allclose(out[name], wanted, atol=1e-5)


# Heads

EVERY_HEAD: dict[str, Head] = {
    "linear": LinearHead(3),
    "linear, each": LinearHead(3, each=4),
    "scalar": ScalarHead(),
    "dueling": DuelingHead(3),
    "dueling, each": DuelingHead(3, each=4),
    "free": FreeHead(3, -0.5),
    "implicit": ImplicitHead(3, cosines=5),
    "implicit, dueling": ImplicitHead(3, cosines=5, dueling=True),
}
SHAPES = {"linear, each": (3, 4), "dueling, each": (3, 4), "scalar": ()}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", EVERY_HEAD)
def test_every_head_acts_as_it_learns(name: str, shared: bool) -> None:
    heads = {"head": EVERY_HEAD[name]}
    module, act = in_numpy(Mlp(hidden=[6], shared=shared), heads)
    tau = torch.from_numpy(acting_fractions()).expand(6, -1)
    arguments = {"tau": tau} if name.startswith("implicit") else {}
    learned = module(torch.from_numpy(observations()), **arguments)["head"].detach().numpy()
    found = act(observations())["head"]
    shape = (32, 3) if arguments else SHAPES.get(name, (3,))
    assert learned.shape == found.shape == (6, *shape)
    np.testing.assert_allclose(found, learned, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", EVERY_HEAD)
def test_every_noisy_head_acts_with_noise_that_differs_by_row(name: str) -> None:
    heads = {"head": EVERY_HEAD[name]}
    _, act = in_numpy(Mlp(hidden=[6], noisy=True), heads, np.random.default_rng(1))
    x = np.tile(observations(1), (5, 1))
    found = act(x)["head"].reshape(5, -1)
    assert np.isfinite(found).all()
    assert len(np.unique(found, axis=0)) == (1 if name == "free" else 5)


def test_a_dueling_head_with_each_has_the_mean_of_its_values() -> None:
    module = Mlp(hidden=[]).build(OBS, {"q": DuelingHead(3, each=4)}, seed=0)
    x = torch.from_numpy(observations())
    torch.testing.assert_close(module(x)["q"].mean(1), module.q.value(x))


def test_an_implicit_head_equals_the_formula_of_its_paper() -> None:
    """Z_tau(x) = W (psi(x) * relu(U cos(pi i tau) + c)) + b."""
    module = Mlp(hidden=[]).build(OBS, {"z": ImplicitHead(3, cosines=5)}, seed=0)
    x, tau = torch.from_numpy(observations(2)), torch.tensor([[0.1, 0.7], [0.3, 0.5]])
    found = module(x, tau=tau)["z"]
    embedding, out = module.z.embedding, module.z.out
    for row in range(2):
        for k in range(2):
            cosines = torch.tensor([np.cos(np.pi * i * tau[row, k].item()) for i in range(5)])
            phi = torch.relu(embedding.weight @ cosines.float() + embedding.bias)
            wanted = out.weight @ (x[row] * phi) + out.bias
            torch.testing.assert_close(found[row, k], wanted)
    with pytest.raises(TypeError, match="needs the fractions `tau`"):
        module(x)


# Refusals


@pytest.mark.parametrize(
    ("layer", "inputs", "what"),
    [
        (DenseLayer(width=3), (2, 3), "needs a row of features, .*; put a layer `flatten` before"),
        (ConvLayer(channels=2, kernel=3), (5,), r"a convolution needs an image, .* \(5,\)"),
        (ConvLayer(channels=2, kernel=9), (1, 8, 8), "9 pixels is larger than its inputs of 8x8"),
    ],
)
def test_layers_refuse_unsuitable_inputs(layer: Layer, inputs: Any, what: str) -> None:
    with pytest.raises(UnsoundError, match=what):
        layer.output_shape(inputs)
