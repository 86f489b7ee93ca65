"""Optimisers of one flat vector of parameters: each step is a few operations, whatever the number of layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from flowrl.core.saved_state import check_names
from flowrl.nodes.devices import to_numpy
from flowrl.nodes.lazy import tensor


class FlatOptimiser(Protocol):
    def step(self, grads: Tensor, lr: float) -> None:
        """Change the parameters by one step."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""


class FlatAdam:
    """params -= lr * (m_hat / (sqrt(v_hat) + eps) + weight_decay * params)."""

    def __init__(
        self,
        params: Tensor,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        self.params, self.beta1, self.beta2, self.eps = params, beta1, beta2, eps
        self.weight_decay = weight_decay
        self.m, self.v, self.steps = torch.zeros_like(params), torch.zeros_like(params), 0
        self._root = torch.empty_like(params)  # of v, in each step: a new vector would take longer

    def step(self, grads: Tensor, lr: float) -> None:
        self.steps += 1
        if self.weight_decay:
            self.params.mul_(1 - lr * self.weight_decay)
        self.m.lerp_(grads, 1 - self.beta1)
        self.v.mul_(self.beta2).addcmul_(grads, grads, value=1 - self.beta2)
        # m_hat = m / (1 - beta1^t) and v_hat = v / (1 - beta2^t), with the divisions moved into scalars
        root = math.sqrt(1 - self.beta2**self.steps)
        scale = lr * root / (1 - self.beta1**self.steps)
        torch.sqrt(self.v, out=self._root).add_(self.eps * root)
        self.params.addcdiv_(self.m, self._root, value=-scale)

    def state_dict(self) -> dict[str, Any]:
        return {**_saved(m=self.m, v=self.v), "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_names("Adam", state, {"m", "v", "steps"})
        self.m.copy_(tensor(state["m"]))
        self.v.copy_(tensor(state["v"]))
        self.steps = int(state["steps"])


class FlatRmsprop:
    """v = decay v + (1 - decay) g^2; step = momentum * step + g / (sqrt(v) + eps); params -= lr * step."""

    def __init__(self, params: Tensor, decay: float, eps: float, momentum: float) -> None:
        self.params, self.decay, self.eps, self.momentum = params, decay, eps, momentum
        self.v, self.moved = torch.zeros_like(params), torch.zeros_like(params)

    def step(self, grads: Tensor, lr: float) -> None:
        self.v.mul_(self.decay).addcmul_(grads, grads, value=1 - self.decay)
        self.moved.mul_(self.momentum).addcdiv_(grads, self.v.sqrt().add_(self.eps))
        self.params.add_(self.moved, alpha=-lr)

    def state_dict(self) -> dict[str, Any]:
        return _saved(v=self.v, moved=self.moved)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_names("RMSprop", state, {"v", "moved"})
        self.v.copy_(tensor(state["v"]))
        self.moved.copy_(tensor(state["moved"]))


class FlatSgd:
    """step = momentum * step + g; params -= lr * step."""

    def __init__(self, params: Tensor, momentum: float) -> None:
        self.params, self.momentum, self.moved = params, momentum, torch.zeros_like(params)

    def step(self, grads: Tensor, lr: float) -> None:
        self.moved.mul_(self.momentum).add_(grads)
        self.params.add_(self.moved, alpha=-lr)

    def state_dict(self) -> dict[str, Any]:
        return _saved(moved=self.moved)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_names("SGD", state, {"moved"})
        self.moved.copy_(tensor(state["moved"]))


def _saved(**vectors: Tensor) -> dict[str, Any]:
    return {name: to_numpy(vector).copy() for name, vector in vectors.items()}
