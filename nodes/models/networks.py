"""Networks whose parameters are views of one flat vector, and Adam on this vector.

With ten small tensors, each operation would be dispatched ten times. With one vector, the optimiser,
clipping, the update of a target and the copy of the weights take a few operations each.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flowrl.core.batch import Array
from flowrl.nodes.lazy import tensor
from flowrl.nodes.models.model import check_names, load_parameters
from flowrl.nodes.models.torch_modules import Obs


def flatten_parameters(module: nn.Module) -> Tensor:
    """Move all parameters into one vector, of which they become views; return the vector."""
    parameters = list(module.parameters())
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    for parameter, view in zip(parameters, _views(flat, parameters), strict=True):
        parameter.data = view
    return flat


def _views(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    pieces = torch.split(flat, [p.numel() for p in like])
    return [piece.view_as(p) for piece, p in zip(pieces, like, strict=True)]


class Adam:
    """Adam (Kingma & Ba 2015, algorithm 1) on one vector."""

    def __init__(self, params: Tensor, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8):
        self.params, self.beta1, self.beta2, self.eps = params, beta1, beta2, eps
        self.m, self.v, self.steps = torch.zeros_like(params), torch.zeros_like(params), 0

    def step(self, grads: Tensor, lr: float) -> None:
        """params -= lr * m_hat / (sqrt(v_hat) + eps)."""
        self.steps += 1
        self.m.lerp_(grads, 1 - self.beta1)
        self.v.mul_(self.beta2).addcmul_(grads, grads, value=1 - self.beta2)
        # m_hat = m / (1 - beta1^t) and v_hat = v / (1 - beta2^t), with the divisions moved into scalars
        root = math.sqrt(1 - self.beta2**self.steps)
        scale = lr * root / (1 - self.beta1**self.steps)
        self.params.addcdiv_(self.m, self.v.sqrt().add_(self.eps * root), value=-scale)

    def state_dict(self) -> dict[str, Any]:
        return {"m": self.m.numpy().copy(), "v": self.v.numpy().copy(), "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_names("Adam", state, {"m", "v", "steps"})
        self.m.copy_(tensor(state["m"]))
        self.v.copy_(tensor(state["v"]))
        self.steps = int(state["steps"])


class Network:
    """A module whose parameters are one vector."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.params = module, flatten_parameters(module)

    def __call__(self, obs: Obs) -> dict[str, Tensor]:
        return self.module(obs)

    def observe(self, obs: Obs) -> None:
        """Let the module update its statistics of observations, if it keeps any."""
        if (update := getattr(self.module, "observe", None)) is not None:
            update(obs)

    def frozen_copy(self) -> Network:
        """A copy that is not trained, such as a target network."""
        return Network(copy.deepcopy(self.module).requires_grad_(False))

    def move_towards(self, other: Network, tau: float = 1.0) -> None:
        """Move the parameters towards those of `other` by the fraction tau (Polyak averaging); copy buffers."""
        self.params.lerp_(other.params, tau)
        for own, source in zip(self.module.buffers(), other.module.buffers(), strict=True):
            own.copy_(source)

    def weights(self, needed: Callable[[str], bool] = lambda name: True) -> dict[str, Array]:
        """A copy of the needed parameters and buffers, by name."""
        names, parameters = zip(*self.module.named_parameters(), strict=True)
        views = dict(zip(names, _views(self.params.clone(), parameters), strict=True))
        views.update((name, buffer.clone()) for name, buffer in self.module.named_buffers())
        return {name: view.numpy() for name, view in views.items() if needed(name)}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.weights())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load_parameters(self.module, state)


class TrainableNetwork(Network):
    """A network with an optimiser; its gradients are views of one vector as well."""

    def __init__(self, module: nn.Module, *, max_grad_norm: float | None = None, eps: float = 1e-8):
        super().__init__(module)
        self.max_grad_norm = max_grad_norm
        self.grads = torch.zeros_like(self.params)
        parameters = list(module.parameters())
        for parameter, view in zip(parameters, _views(self.grads, parameters), strict=True):
            parameter.grad = view
        self.adam = Adam(self.params, eps=eps)

    def descend(self, loss: Tensor, lr: float) -> Tensor:
        """Do one optimiser step; return the norm of the gradient before clipping."""
        self.grads.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.linalg.vector_norm(self.grads)
        if self.max_grad_norm is not None:
            self.grads.mul_((self.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
        self.adam.step(self.grads, lr)
        return norm

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights(), "adam": self.adam.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_names("a trained network", state, {"weights", "adam"})
        load_parameters(self.module, state["weights"])
        self.adam.load_state_dict(state["adam"])
