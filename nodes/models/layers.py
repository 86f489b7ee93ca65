"""The layers of models. Each has a torch module, which learns, and most have a step in numpy, which acts.

A small network acts faster in numpy than in torch, and a collector's process then needs no torch. A model
with a layer without a numpy step acts in torch. A layer of your own is a subclass of `Layer`, named by its
import path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import Part, param
from flowrl.core.facts import UnsoundError

if TYPE_CHECKING:
    from torch import nn

Activation = Literal["none", "relu", "tanh", "elu", "silu", "gelu", "sigmoid"]
Initialisation = Literal["uniform", "orthogonal"]
Shape = tuple[int, ...]

ONE, ZERO, HALF = np.float32(1), np.float32(0), np.float32(0.5)
NORM_EPSILON = np.float32(1e-5)


def _sigmoid(x: Array) -> Array:
    return ONE / (ONE + np.exp(-x))


# Each function may overwrite its argument.
NUMPY_ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, ZERO, out=x),
    "tanh": lambda x: np.tanh(x, out=x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, ZERO))),
    "silu": lambda x: x * _sigmoid(x),
    "sigmoid": _sigmoid,
}


class NumpyLayer(Protocol):
    """A layer that acts in numpy."""

    shapes: Mapping[str, Shape]  # the parameters that it needs

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Use these parameters from now on."""

    def __call__(self, x: Array, rng: np.random.Generator | None) -> Array:
        """Map inputs (B, …) to outputs. Layers with noise draw it from `rng`; with None there is no noise."""


class RecurrentNumpyLayer(Protocol):
    """A layer with memory that acts in numpy."""

    shapes: Mapping[str, Shape]

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Use these parameters from now on."""

    def step(self, x: Array, memory: Array) -> tuple[Array, Array]:
        """Map inputs and the memory (B, M) before the step to outputs and the memory after it."""


class Layer(Part):
    """A layer. One of your own defines `output_shape` and `module`; its module also acts."""

    kind = "layer"
    memory_size: ClassVar[int] = (
        0  # the numbers that a recurrent layer remembers; 0: it has no memory
    )
    # Whether it normalises by statistics of batches, which only few algorithms let it learn.
    keeps_batch_statistics: ClassVar[bool] = False

    def output_shape(self, inputs: Shape) -> Shape:
        """The shape of a row of outputs, given that of a row of inputs."""
        raise NotImplementedError(f"{type(self).__name__} does not define output_shape")

    def module(self, inputs: Shape, init: Initialisation) -> nn.Module:
        """Make the torch module from inputs (B, …) to outputs (B, …).

        The module of a recurrent layer maps inputs (N, T, F), the memory (N, M) before the first step, and the flags
        (N, T) of steps at which episodes begin, to outputs (N, T, …) and the memory after each step (N, T, M).
        """
        raise NotImplementedError(f"{type(self).__name__} does not define module")

    def numpy_layer(self, inputs: Shape) -> NumpyLayer | RecurrentNumpyLayer | None:
        """Make the layer that acts in numpy; None if there is none."""
        return None


class DenseLayer(Layer):
    """An affine map of features, and an activation function."""

    class Config(BaseConfig):
        width: int = param(..., "outputs", ge=1)
        activation: Activation = param("relu", "activation function of the outputs")
        norm: bool = param(
            False, "normalise the outputs of each row before the activation (layer norm)"
        )
        noisy: bool = param(False, "add learned noise to the weights (NoisyNet), which explores")

    def output_shape(self, inputs: Shape) -> Shape:
        if len(inputs) != 1:
            raise UnsoundError(
                f"a dense layer needs a row of features, and its inputs have the shape {inputs}",
                "put a layer `flatten` before it",
                "model",
            )
        return (self.config.width,)

    def module(self, inputs: Shape, init: Initialisation) -> nn.Module:
        from flowrl.nodes.models.torch_layers import TorchDense

        c = self.config
        return TorchDense(inputs[0], c.width, c.activation, c.norm, c.noisy, init, ROOT_2)

    def numpy_layer(self, inputs: Shape) -> NumpyLayer | None:
        c = self.config
        if c.activation not in NUMPY_ACTIVATIONS:
            return None
        return NumpyDense(inputs[0], c.width, c.activation, c.norm, c.noisy)


class BatchNormLayer(Layer):
    """Batch renormalisation of features (Ioffe 2017), by statistics of the batches that are learned from.

    Learning normalises by the mean and deviation of the batch, corrected towards their running averages. Acting
    normalises by the running averages, which are sent and saved with the weights.
    """

    keeps_batch_statistics = True

    class Config(BaseConfig):
        momentum: float = param(
            0.99, "share of the running averages that a batch keeps", ge=0, lt=1
        )
        ratio_limit: float = param(
            3.0, "limit of the deviation's correction, a ratio; 1: none is done", ge=1
        )
        shift_limit: float = param(
            5.0, "limit of the mean's correction, in deviations; 0: none is done", ge=0
        )
        warmup_batches: int = param(
            100_000, "first batches, without correction: plain batch normalisation", ge=0
        )

    def output_shape(self, inputs: Shape) -> Shape:
        if len(inputs) != 1:
            raise UnsoundError(
                f"batch renormalisation needs a row of features, and its inputs have the shape {inputs}",
                "put a layer `flatten` before it",
                "model",
            )
        return inputs

    def module(self, inputs: Shape, init: Initialisation) -> nn.Module:
        from flowrl.nodes.models.torch_layers import TorchBatchNorm

        return TorchBatchNorm(inputs[0], **self.config.model_dump())

    def numpy_layer(self, inputs: Shape) -> NumpyLayer:
        return NumpyBatchNorm(inputs[0])


class FlattenLayer(Layer):
    """Makes a row of features of inputs of any shape."""

    def output_shape(self, inputs: Shape) -> Shape:
        return (int(np.prod(inputs, dtype=np.int64)),)

    def module(self, inputs: Shape, init: Initialisation) -> nn.Module:
        from torch import nn

        return nn.Flatten()

    def numpy_layer(self, inputs: Shape) -> NumpyLayer:
        return NumpyFlatten()


class ConvLayer(Layer):
    """A convolution of an image (channels, height, width), and an activation function; it acts in torch."""

    class Config(BaseConfig):
        channels: int = param(..., "output channels", ge=1)
        kernel: int = param(..., "width and height of the kernel, in pixels", ge=1)
        stride: int = param(1, "step of the kernel, in pixels", ge=1)
        activation: Activation = param("relu", "activation function of the outputs")

    def output_shape(self, inputs: Shape) -> Shape:
        c = self.config
        if len(inputs) != 3:
            raise UnsoundError(
                f"a convolution needs an image, and its inputs have the shape {inputs}", "", "model"
            )
        height, width = ((size - c.kernel) // c.stride + 1 for size in inputs[1:])
        if min(inputs[1:]) < c.kernel:
            what = f"a kernel of {c.kernel} pixels is larger than its inputs of {inputs[1]}x{inputs[2]}"
            raise UnsoundError(what, "give smaller kernels and strides", "model")
        return c.channels, height, width

    def module(self, inputs: Shape, init: Initialisation) -> nn.Module:
        from flowrl.nodes.models.torch_layers import TorchConv

        c = self.config
        return TorchConv(inputs[0], c.channels, c.kernel, c.stride, c.activation, init)


class GruLayer(Layer):
    """A gated recurrent unit (Cho et al. 2014); its outputs are its memory."""

    class Config(BaseConfig):
        size: int = param(64, "outputs, and width of the memory", ge=1)

    @property
    def memory_size(self) -> int:  # type: ignore[override]  # depends on the parameters here
        return int(self.config.size)

    def output_shape(self, inputs: Shape) -> Shape:
        return (self.config.size,)

    def module(self, inputs: Shape, init: Initialisation) -> nn.Module:
        from flowrl.nodes.models.torch_layers import TorchGru

        return TorchGru(inputs[0], self.config.size)

    def numpy_layer(self, inputs: Shape) -> RecurrentNumpyLayer:
        return NumpyGru(inputs[0], self.config.size)


class LstmLayer(Layer):
    """A long short-term memory (Hochreiter & Schmidhuber 1997); its memory is (outputs, cell)."""

    class Config(BaseConfig):
        size: int = param(64, "outputs; the memory is twice as wide", ge=1)

    @property
    def memory_size(self) -> int:  # type: ignore[override]
        return 2 * int(self.config.size)

    def output_shape(self, inputs: Shape) -> Shape:
        return (self.config.size,)

    def module(self, inputs: Shape, init: Initialisation) -> nn.Module:
        from flowrl.nodes.models.torch_layers import TorchLstm

        return TorchLstm(inputs[0], self.config.size)

    def numpy_layer(self, inputs: Shape) -> RecurrentNumpyLayer:
        return NumpyLstm(inputs[0], self.config.size)


ROOT_2 = 2**0.5  # the gain that keeps the variance through relu (He et al. 2015)


# Layers in numpy


class NumpyDense:
    """y = activate(norm(x W + b)); with noise, W and b are those of a noisy layer (Fortunato et al. 2018)."""

    def __init__(
        self, inputs: int, outputs: int, activation: str, norm: bool = False, noisy: bool = False
    ) -> None:
        self.activate = NUMPY_ACTIVATIONS[activation]
        self.norm, self.noisy = norm, noisy
        shapes: dict[str, Shape] = {"weight": (outputs, inputs), "bias": (outputs,)}
        if noisy:
            shapes |= {"weight_sigma": (outputs, inputs), "bias_sigma": (outputs,)}
        if norm:
            shapes |= {"norm.weight": (outputs,), "norm.bias": (outputs,)}
        self.shapes: Mapping[str, Shape] = shapes

    def load(self, arrays: Mapping[str, Array]) -> None:
        self.weight, self.bias = np.ascontiguousarray(arrays["weight"].T), arrays["bias"].copy()
        if self.noisy:
            self.weight_sigma = np.ascontiguousarray(arrays["weight_sigma"].T)
            self.bias_sigma = arrays["bias_sigma"].copy()
        if self.norm:
            self.scale, self.shift = arrays["norm.weight"].copy(), arrays["norm.bias"].copy()

    def __call__(self, x: Array, rng: np.random.Generator | None = None) -> Array:
        y = x @ self.weight
        y += self.bias
        if self.noisy and rng is not None:
            y += self._noise(x, rng)
        if self.norm:
            centred = y - y.mean(-1, keepdims=True)
            variance = np.square(centred).mean(-1, keepdims=True)
            y = centred / np.sqrt(variance + NORM_EPSILON) * self.scale + self.shift
        return self.activate(y)

    def _noise(self, x: Array, rng: np.random.Generator) -> Array:
        """((x * e_in) W_sigma + b_sigma) * e_out: factorised noise (equation 10), drawn for each row."""
        inputs, outputs = self.weight.shape
        each_row = (len(x), *[1] * (x.ndim - 2), inputs + outputs)
        normal = rng.standard_normal(each_row, np.float32)
        noise = np.sign(normal) * np.sqrt(np.abs(normal))
        noise_in, noise_out = noise[..., :inputs], noise[..., inputs:]
        scaled: Array = ((x * noise_in) @ self.weight_sigma + self.bias_sigma) * noise_out
        return scaled


class NumpyBatchNorm:
    """y = (x - mean) / sqrt(var + eps) * weight + bias, with running averages."""

    def __init__(self, size: int) -> None:
        names = ("weight", "bias", "mean", "var")
        self.shapes: Mapping[str, Shape] = {**dict.fromkeys(names, (size,)), "batches": (1,)}

    def load(self, arrays: Mapping[str, Array]) -> None:
        self.scale = arrays["weight"] / np.sqrt(arrays["var"] + NORM_EPSILON)
        self.shift = arrays["bias"] - arrays["mean"] * self.scale

    def __call__(self, x: Array, rng: np.random.Generator | None = None) -> Array:
        scaled: Array = x * self.scale + self.shift
        return scaled


class NumpyFlatten:
    def __init__(self) -> None:
        self.shapes: Mapping[str, Shape] = {}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """There are no parameters."""

    def __call__(self, x: Array, rng: np.random.Generator | None = None) -> Array:
        return x.reshape(len(x), -1)


def _cell_shapes(gates: int, inputs: int, size: int) -> Mapping[str, Shape]:
    rows = gates * size
    return {
        "weight_ih": (rows, inputs),
        "weight_hh": (rows, size),
        "bias_ih": (rows,),
        "bias_hh": (rows,),
    }


class NumpyGru:
    """h' = (1 - z) n + z h, with n = tanh(W x + b + r (U h + c)), as in torch's GRUCell."""

    def __init__(self, inputs: int, size: int) -> None:
        self.shapes = _cell_shapes(3, inputs, size)

    def load(self, arrays: Mapping[str, Array]) -> None:
        self.input_weights = arrays["weight_ih"].T.copy(), arrays["bias_ih"].copy()
        self.memory_weights = arrays["weight_hh"].T.copy(), arrays["bias_hh"].copy()

    def step(self, x: Array, memory: Array) -> tuple[Array, Array]:
        xs = np.split(x @ self.input_weights[0] + self.input_weights[1], 3, axis=1)
        hs = np.split(memory @ self.memory_weights[0] + self.memory_weights[1], 3, axis=1)
        r, z = (_sigmoid(a + b) for a, b in zip(xs[:2], hs[:2], strict=True))
        n = np.tanh(xs[2] + r * hs[2])
        new_memory: Array = n + z * (memory - n)
        return new_memory, new_memory


class NumpyLstm:
    """c' = f c + i g and h' = o tanh(c'), as in torch's LSTMCell; the memory is (h, c)."""

    def __init__(self, inputs: int, size: int) -> None:
        self.size, self.shapes = size, _cell_shapes(4, inputs, size)

    def load(self, arrays: Mapping[str, Array]) -> None:
        self.input_weights = arrays["weight_ih"].T.copy()
        self.memory_weights = arrays["weight_hh"].T.copy()
        self.bias = arrays["bias_ih"] + arrays["bias_hh"]

    def step(self, x: Array, memory: Array) -> tuple[Array, Array]:
        h, c = memory[:, : self.size], memory[:, self.size :]
        gates = x @ self.input_weights + h @ self.memory_weights + self.bias
        i, f, g, o = np.split(gates, 4, axis=1)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        h = _sigmoid(o) * np.tanh(c)
        return h, np.concatenate([h, c], axis=1)
