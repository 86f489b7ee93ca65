"""The torch modules of layers and heads, which learn."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flowrl.nodes.devices import to_float
from flowrl.nodes.models.heads import (
    DuelingHead,
    FreeHead,
    Head,
    ImplicitHead,
    ScalarHead,
    SharesHead,
    output_layers,
)
from flowrl.nodes.models.layers import NORM_EPSILON, ROOT_2, Initialisation

ACTIVATIONS = {
    "none": lambda x: x,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "elu": F.elu,
    "silu": F.silu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
}
EPSILON = float(NORM_EPSILON)  # no numpy scalar within a module: it would split a compiled pass
NOISE_SCALE = 0.5  # sigma_0 of Fortunato et al. 2018, section 3.2


def initialise(layer: nn.Linear | nn.Conv2d, init: Initialisation, gain: float) -> None:
    """Draw orthogonal weights and set biases to 0; `uniform` keeps torch's own initial weights."""
    if init == "orthogonal":
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]


class TorchDense(nn.Linear):
    """y = activate(norm(x W + b)).

    A noisy layer (Fortunato et al. 2018) has factorised noise in W and b while `noise` is set.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        activation: str,
        norm: bool,
        noisy: bool,
        init: Initialisation,
        gain: float,
    ) -> None:
        super().__init__(inputs, outputs)
        initialise(self, init, gain)
        self.activate = ACTIVATIONS[activation]
        self.norm = nn.LayerNorm(outputs, eps=EPSILON) if norm else None
        self.noise: tuple[Tensor, Tensor] | None = None  # e_in (I,) and e_out (O,)
        if noisy:
            sigma = NOISE_SCALE / math.sqrt(inputs)
            self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma))
            self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma))

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight, self.bias)
        if self.noise is not None:
            noise_in, noise_out = self.noise
            y = y + F.linear(x * noise_in, self.weight_sigma, self.bias_sigma) * noise_out
        if self.norm is not None:
            y = self.norm(y)
        return self.activate(y)


def draw_noise(module: nn.Module, generator: torch.Generator) -> None:
    """Draw new noise for all noisy layers of a module: f(e) with f(x) = sign(x) sqrt(|x|)."""
    for layer in module.modules():
        if isinstance(layer, TorchDense) and hasattr(layer, "weight_sigma"):
            size, device = layer.in_features + layer.out_features, layer.weight.device
            normal = torch.randn(size, generator=generator).to(device)
            noise = normal.sign() * normal.abs().sqrt()
            layer.noise = noise[: layer.in_features], noise[layer.in_features :]


def has_noise(module: nn.Module) -> bool:
    """Whether a module has noisy layers."""
    return any(hasattr(layer, "weight_sigma") for layer in module.modules())


class TorchBatchNorm(nn.Module):
    """Batch renormalisation (Ioffe 2017, algorithm 1); in evaluation mode, y = (x - mean) / sqrt(var + eps) w + b.

    In training mode, x' = (x - m_B) / s_B r + d and y = x' w + b, with the mean m_B and deviation s_B of the batch,
    r = clip(s_B / s, 1 / r_max, r_max) and d = clip((m_B - m) / s, -d_max, d_max), through which no gradient goes.
    The first batches have r = 1 and d = 0. Each batch then moves the running averages m and s^2.
    """

    mean: Tensor
    var: Tensor
    batches: Tensor

    def __init__(
        self,
        size: int,
        momentum: float,
        ratio_limit: float,
        shift_limit: float,
        warmup_batches: int,
    ) -> None:
        super().__init__()
        self.momentum, self.warmup_batches = momentum, warmup_batches
        self.ratio_limit, self.shift_limit = ratio_limit, shift_limit
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("var", torch.ones(size))
        self.register_buffer("batches", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if not self.training:
            return F.batch_norm(x, self.mean, self.var, weight, bias, False, 0.0, EPSILON)
        with torch.no_grad():
            var, mean = torch.var_mean(x.float(), 0, correction=0)
            corrections = self._corrections(mean, var)
            self.mean.lerp_(mean, 1 - self.momentum)
            self.var.lerp_(var, 1 - self.momentum)
            self.batches += 1
        if corrections is not None:  # y = x'' (r w) + (d w + b), with x'' = (x - m_B) / s_B
            ratio, shift = corrections
            weight, bias = ratio * weight, shift * weight + bias
        return F.batch_norm(x, None, None, weight, bias, True, 0.0, EPSILON)

    def _corrections(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor] | None:
        """r and d; None for the first batches."""
        if to_float(self.batches) < self.warmup_batches:
            return None
        running = (self.var + EPSILON).sqrt()
        ratio = ((var + EPSILON).sqrt() / running).clamp(1 / self.ratio_limit, self.ratio_limit)
        shift = ((mean - self.mean) / running).clamp(-self.shift_limit, self.shift_limit)
        return ratio, shift


class TorchConv(nn.Conv2d):
    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int,
        activation: str,
        init: Initialisation,
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride)
        initialise(self, init, ROOT_2)
        self.activate = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.activate(super().forward(x))


class TorchGru(nn.GRUCell):
    """Runs a gated recurrent unit through unrolls; the memory is cleared where an episode begins."""

    def forward(self, x: Tensor, memory: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        keep_t = (~begins).unsqueeze(2).to(x.dtype)
        memories = []
        for t in range(begins.shape[1]):
            memory = super().forward(x[:, t], memory * keep_t[:, t])
            memories.append(memory)
        memory_t = torch.stack(memories, 1)
        return memory_t, memory_t


class TorchLstm(nn.LSTMCell):
    """Runs a long short-term memory through unrolls; the memory (h, c) is cleared where an episode begins."""

    def forward(self, x: Tensor, memory: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        keep_t = (~begins).unsqueeze(2).to(x.dtype)
        memories = []
        for t in range(begins.shape[1]):
            h, c = (memory * keep_t[:, t]).chunk(2, 1)
            memory = torch.cat(super().forward(x[:, t], (h, c)), 1)
            memories.append(memory)
        memory_t = torch.stack(memories, 1)
        return memory_t[..., : self.hidden_size], memory_t


class TorchHead(nn.Module):
    """The layers of a head: `out`, or `value` and `advantage` of a dueling head, or `free` numbers.

    A head that shares no trunk with others has the layers `below` it for itself.
    """

    def __init__(
        self,
        head: Head,
        width: int,
        noisy: bool,
        init: Initialisation,
        below: Sequence[nn.Module] = (),
    ) -> None:
        super().__init__()
        self.head, self.below = head, tuple(below)
        for i, layer in enumerate(below):
            self.add_module(str(i), layer)
        if isinstance(head, FreeHead):
            self.free = nn.Parameter(torch.full((head.n,), head.value))
            return
        for name, (outputs, gain) in output_layers(head).items():
            self.add_module(name, TorchDense(width, outputs, "none", False, noisy, init, gain))
        if isinstance(head, ImplicitHead):
            self.embedding = TorchDense(head.cosines, width, "relu", False, noisy, init, ROOT_2)
            steps = torch.arange(head.cosines, dtype=torch.float32) * math.pi
            self.register_buffer("steps", steps, persistent=False)

    def forward(self, x: Tensor, tau: Tensor | None = None) -> Tensor:
        """Features (B, F) to outputs: (B, n), or (B,), (B, n, each) or (B, K, n), as the head declares."""
        head = self.head
        if isinstance(head, FreeHead):
            return self.free.expand(x.shape[0], -1)
        for layer in self.below:
            x = layer.forward(x)
        if isinstance(head, ImplicitHead):
            if tau is None:
                raise TypeError("an implicit head needs the fractions `tau`")
            embedded = self._layer("embedding").forward(
                torch.cos(tau.unsqueeze(-1) * self.get_buffer("steps"))
            )
            return self._outputs(x.unsqueeze(1) * embedded)
        if isinstance(head, SharesHead):
            return self._outputs(x.detach()).softmax(-1)
        y = self._outputs(x)
        return y.squeeze(-1) if isinstance(head, ScalarHead) else y

    def _layer(self, name: str) -> TorchDense:
        layer: TorchDense = self._modules[name]  # type: ignore[assignment]
        return layer

    def _outputs(self, x: Tensor) -> Tensor:
        head, each = self.head, getattr(self.head, "each", None)
        if isinstance(head, DuelingHead) or (isinstance(head, ImplicitHead) and head.dueling):
            value, advantage = (self._layer(name).forward(x) for name in ("value", "advantage"))
            if each is None:
                return value + advantage - advantage.mean(-1, keepdim=True)
            advantage = _by_action(advantage, each)
            return value.unsqueeze(-2) + advantage - advantage.mean(-2, keepdim=True)
        y = self._layer("out").forward(x)
        return y if each is None else _by_action(y, each)


def _by_action(x: Tensor, each: int) -> Tensor:
    """Split outputs (…, n each) into those of each action (…, n, each)."""
    return x.view(*x.shape[:-1], -1, each)
