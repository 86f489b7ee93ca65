"""Networks whose parameters are views of one flat vector.

With ten small tensors, each operation would be dispatched ten times. With one vector, the optimiser,
clipping, the update of a target and the copy of the weights take a few operations each.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from flowrl.core.batch import Array, Column
from flowrl.core.saved_state import check_names
from flowrl.machine.freed_memory import keep_freed_memory
from flowrl.nodes.compute import DEFAULT, Compute
from flowrl.nodes.devices import to_numpy
from flowrl.nodes.lazy import tensor
from flowrl.nodes.models.action_mask import mask_leaf, mask_tensor
from flowrl.nodes.models.heads import NO_HEADS, Heads, check_heads
from flowrl.nodes.models.input_columns import Inputs, input_columns, leaf_name
from flowrl.nodes.models.numpy_model import MEMORY
from flowrl.nodes.models.optimisers import Adam, Optimiser
from flowrl.nodes.models.saved_weights import load_parameters, saved_tensors
from flowrl.nodes.models.torch_layers import draw_noise, has_noise
from flowrl.nodes.models.torch_modules import Copies, FeatureNormaliser, LayeredModule
from flowrl.nodes.observations import leaf_columns

Values = Tensor | Mapping[str, Tensor]  # a plain input, or the leaves of a nested one


def _make_pass(module: nn.Module, compute: Compute) -> Callable[..., dict[str, Tensor]]:
    """The function from inputs to heads in float32: the module itself, unless its passes are compiled or mixed."""
    plain: Callable[..., dict[str, Tensor]] = torch.compile(module) if compute.compile else module
    if compute.precision == "float32":
        return plain
    kind = torch.device(compute.device).type

    def mixed(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
        with torch.autocast(kind, torch.bfloat16):
            heads = plain(*args, **kwargs)
        return {name: head.float() for name, head in heads.items()}

    return mixed


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


class Network:
    """A module whose parameters are one vector, and which takes inputs with any leading dimensions."""

    def __init__(
        self,
        module: nn.Module,
        inputs: Inputs,
        masked: str = "",
        recurrent: bool = False,
        masks_each: bool = False,
        *,
        heads: Heads = NO_HEADS,
        compute: Compute = DEFAULT,
    ) -> None:
        """With `masked`, this head has the score `FORBIDDEN` where the observed action mask forbids an action.

        Actions are its last axis, or with `masks_each`, the last but one. The first result is compared with `heads`.
        """
        self._unchecked = heads
        self.module = module.to(compute.device)
        self.params, self.compute = flatten_parameters(module), compute
        self.inputs, self.recurrent = inputs, recurrent
        self._leaf, self._row_dims = _first_leaf(inputs)
        self._mask = _mask_name(inputs) if masked else None
        self._masked, self._masks_each = masked, masks_each
        names = dict(module.named_parameters())
        self._buffers = {n: t for n, t in saved_tensors(module).items() if n not in names}
        self._has_noise = has_noise(module)
        # Whether it normalises inputs by statistics of them, or may do so, because it is of your own.
        self.keeps_statistics = not isinstance(module, LayeredModule | Copies) or any(
            isinstance(part, FeatureNormaliser) for part in module.modules()
        )
        self._pass = _make_pass(module, compute)

    def __call__(
        self, obs: Values | None = None, /, *, tau: Tensor | None = None, **named: Values
    ) -> dict[str, Tensor]:
        """Map inputs (…, row) to heads (…, n); several inputs are given by name."""
        values = obs if obs is not None else _joined_values(named)
        lead = self._leading(values)
        if len(lead) == 1:
            heads = self._pass(values) if tau is None else self._pass(values, tau=tau)
        else:
            values = map_values(values, lambda x: x.flatten(0, len(lead) - 1))
            flat_tau = {} if tau is None else {"tau": tau.flatten(0, len(lead) - 1)}
            heads = self._pass(values, **flat_tau)
        heads = self._masked_heads(heads, values)
        if len(lead) == 1:
            return heads
        return {name: _shaped(head, lead) for name, head in heads.items()}

    def unroll(
        self, obs: Values, memory: Tensor | None, begins: Tensor, burn_in: int = 0
    ) -> dict[str, Tensor]:
        """Run through unrolls (N, T, …) from the memory before them; return the heads after the burn-in.

        `begins` (N, T) marks the first steps of episodes. Networks without memory map each step alone, so an algorithm
        that learns from unrolls is the same for both.
        """
        if not self.recurrent:
            return self(map_values(obs, lambda x: x[:, burn_in:]))
        if memory is None:
            raise TypeError("a recurrent network needs the memory before its unrolls")
        if burn_in:
            with torch.no_grad():
                first = map_values(obs, lambda x: x[:, :burn_in])
                memory = self._unroll(first, memory, begins[:, :burn_in])[MEMORY][:, -1]
            obs, begins = map_values(obs, lambda x: x[:, burn_in:]), begins[:, burn_in:]
        return self._unroll(obs, memory, begins)

    def _unroll(self, obs: Values, memory: Tensor, begins: Tensor) -> dict[str, Tensor]:
        flat = map_values(obs, lambda x: x.flatten(0, 1))
        heads = self._masked_heads(self._pass(flat, memory, begins), flat)
        return {name: _shaped(head, begins.shape) for name, head in heads.items()}

    def _leading(self, values: Values) -> torch.Size:
        x = values if isinstance(values, Tensor) else values[self._leaf]
        return x.shape[: x.dim() - self._row_dims]

    def _masked_heads(self, heads: dict[str, Tensor], values: Values) -> dict[str, Tensor]:
        if self._unchecked:
            check_heads(heads, self._unchecked, self._leading(values)[0])
            self._unchecked = NO_HEADS
        if self._mask is None or isinstance(values, Tensor):
            return heads
        scores = mask_tensor(heads[self._masked], values[self._mask], self._masks_each)
        return {**heads, self._masked: scores}

    def draw_noise(self, generator: torch.Generator) -> None:
        """Draw new noise for noisy layers, if there are any."""
        if self._has_noise:
            draw_noise(self.module, generator)

    def observe(self, obs: Values | None = None, /, **named: Values) -> None:
        """Let the module update its statistics of inputs (…, row), if it keeps any."""
        if (update := getattr(self.module, "observe", None)) is None:
            return
        values = obs if obs is not None else _joined_values(named)
        dims = len(self._leading(values))
        update(map_values(values, lambda x: x.flatten(0, dims - 1)) if dims > 1 else values)

    @contextmanager
    def batch_statistics(self) -> Iterator[None]:
        """Within it, batch normalisation uses and learns the statistics of batches; afterwards, it uses averages."""
        self.module.train()
        try:
            yield
        finally:
            self.module.eval()

    def frozen_copy(self) -> Network:
        """A copy that is not trained, such as a target network."""
        module = copy.deepcopy(self.module).requires_grad_(False)
        how = self._masked, self.recurrent, self._masks_each
        return Network(module, self.inputs, *how, compute=self.compute)

    def move_towards(self, other: Network, tau: float = 1.0) -> None:
        """Move the parameters towards those of `other` by the fraction tau (Polyak averaging); copy buffers."""
        self.params.lerp_(other.params, tau)
        for name, own in self._buffers.items():
            own.copy_(other._buffers[name])

    def weights(self, needed: Callable[[str], bool] = lambda name: True) -> dict[str, Array]:
        """A copy of the needed parameters and buffers, by name."""
        names, parameters = zip(*self.module.named_parameters(), strict=True)
        vector = torch.from_numpy(to_numpy(self.params).copy())
        views = dict(zip(names, _views(vector, parameters), strict=True))
        arrays = {name: view.numpy() for name, view in views.items()}
        arrays |= {name: to_numpy(buffer).copy() for name, buffer in self._buffers.items()}
        return {name: array for name, array in arrays.items() if needed(name)}

    def load_weights(self, arrays: Mapping[str, Array]) -> None:
        """Copy arrays into all parameters and buffers."""
        load_parameters(self.module, arrays)

    def state_dict(self) -> dict[str, Any]:
        return dict(self.weights())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load_parameters(self.module, state)


class TrainableNetwork(Network):
    """A network with an optimiser; its gradients are views of one vector as well."""

    def __init__(
        self,
        module: nn.Module,
        inputs: Inputs,
        masked: str = "",
        recurrent: bool = False,
        masks_each: bool = False,
        *,
        heads: Heads = NO_HEADS,
        optimiser: Optimiser | None = None,
        max_grad_norm: float | None = None,
        compute: Compute = DEFAULT,
    ) -> None:
        super().__init__(
            module, inputs, masked, recurrent, masks_each, heads=heads, compute=compute
        )
        keep_freed_memory()  # that of activations and gradients
        self.max_grad_norm = max_grad_norm
        self.grads = torch.zeros_like(self.params)
        self.parameters = list(module.parameters())
        for parameter, view in zip(
            self.parameters, _views(self.grads, self.parameters), strict=True
        ):
            parameter.grad = view
        self.optimiser = (optimiser or Adam()).attach(self.params)
        self.accumulated = AccumulatedGradients(self.grads, self.compute.accumulate)

    def descend(self, loss: Tensor, lr: float, also: Sequence[TrainableNetwork] = ()) -> Tensor:
        """Do one optimiser step down the gradient of a loss; return the gradient's norm before clipping.

        Only the parameters of this network get gradients, and those of the networks in `also`, which do a step of
        their own. If gradients are accumulated, the step is that of several calls, and done in the last of them.
        """
        networks = (self, *also)
        for network in networks:
            network.grads.zero_()
        loss.backward(inputs=[p for network in networks for p in network.parameters])  # type: ignore[no-untyped-call]
        norms = [network.step(lr) for network in networks]
        return norms[0]

    def step(self, lr: float) -> Tensor:
        """Do one optimiser step with the gradients that are there; return their norm before clipping."""
        group = self.compute.group
        if group.size > 1:
            self.grads.mul_(group.share)
        is_due = self.accumulated.add(self.grads)
        if group.size > 1 and is_due:
            group.sum_gradients(self.grads)
        norm = torch.linalg.vector_norm(self.grads)
        if not is_due:
            return norm
        if self.max_grad_norm is not None:
            self.grads.mul_((self.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
        self.optimiser.step(self.grads, lr)
        return norm

    def state_dict(self) -> dict[str, Any]:
        optimiser = {**self.optimiser.state_dict(), **self.accumulated.state_dict()}
        return {"weights": self.weights(), "optimiser": optimiser}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_names("a trained network", state, {"weights", "optimiser"})
        load_parameters(self.module, state["weights"])
        self.optimiser.load_state_dict(self.accumulated.taken_from(state["optimiser"]))


class AccumulatedGradients:
    """The sum of the gradients since the last optimiser step, if a step takes the mean of several."""

    def __init__(self, grads: Tensor, wanted: int) -> None:
        self.wanted, self.added = wanted, 0
        self.total = torch.zeros_like(grads) if wanted > 1 else None

    def add(self, grads: Tensor) -> bool:
        """Add gradients; return whether a step is due, and if it is, put the mean in their place."""
        if self.total is None:
            return True
        self.total.add_(grads)
        self.added += 1
        if self.added < self.wanted:
            return False
        torch.div(self.total, self.wanted, out=grads)
        self.total.zero_()
        self.added = 0
        return True

    def state_dict(self) -> dict[str, Any]:
        """Its part of an optimiser's state, which is empty if gradients are not accumulated."""
        if self.total is None:
            return {}
        return {"accumulated": to_numpy(self.total).copy(), "accumulated_gradients": self.added}

    def taken_from(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Continue from its part of an optimiser's state; return the rest."""
        rest = dict(state)
        total, added = rest.pop("accumulated", None), rest.pop("accumulated_gradients", 0)
        if self.total is not None:
            self.added = int(added) if total is not None else 0
            self.total.zero_() if total is None else self.total.copy_(tensor(total))
        return rest


class TrainablePart:
    """A part of a network, such as a head, with an optimiser and a learning rate of its own.

    The network's own optimiser must find no gradient in this part: its losses must not depend on it.
    """

    def __init__(self, network: TrainableNetwork, part: str, optimiser: Optimiser) -> None:
        """`part` is the name of a submodule. Its parameters are neighbours in the network's vector."""
        own = list(network.module.get_submodule(part).parameters())
        first = next(i for i, p in enumerate(network.parameters) if p is own[0])
        begin = sum(p.numel() for p in network.parameters[:first])
        end = begin + sum(p.numel() for p in own)
        self.parameters, self.grads = own, network.grads[begin:end]
        self.optimiser = optimiser.attach(network.params[begin:end])
        self.accumulated = AccumulatedGradients(self.grads, network.compute.accumulate)
        self._group = network.compute.group

    def descend(self, loss: Tensor, lr: float) -> None:
        """Do one optimiser step of this part alone down the gradient of a loss."""
        self.grads.zero_()
        loss.backward(inputs=self.parameters)  # type: ignore[no-untyped-call]
        if self._group.size > 1:
            self.grads.mul_(self._group.share)
        if self.accumulated.add(self.grads):
            if self._group.size > 1:
                self._group.sum_gradients(self.grads)
            self.optimiser.step(self.grads, lr)
        self.grads.zero_()

    def state_dict(self) -> dict[str, Any]:
        return {**self.optimiser.state_dict(), **self.accumulated.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.optimiser.load_state_dict(self.accumulated.taken_from(state))


class LearnedNumber(TrainableNetwork):
    """A number that is learned by gradients, such as a temperature."""

    def __init__(self, value: float, compute: Compute = DEFAULT) -> None:
        module = nn.Module()
        module.register_parameter("value", nn.Parameter(torch.tensor([float(value)])))
        inputs = {"obs": Column("float32")}
        super().__init__(module, inputs, compute=compute)

    @property
    def value(self) -> Tensor:
        """The number, as a tensor () with a gradient."""
        parameter: Tensor = self.module.value  # type: ignore[assignment]
        return parameter[0]


def trainable_networks(owner: Any) -> dict[str, TrainableNetwork]:
    """The attributes that are networks with an optimiser, by name."""
    return {name: v for name, v in vars(owner).items() if isinstance(v, TrainableNetwork)}


def map_values(values: Values, function: Callable[[Tensor], Tensor]) -> Values:
    """Apply a function to a plain input, or to each leaf of a nested one."""
    if isinstance(values, Mapping):
        return {leaf: function(x) for leaf, x in values.items()}
    return function(values)


def _shaped(x: Tensor, lead: torch.Size) -> Tensor:
    """Replace the first dimension by several."""
    return x.reshape(*lead, *x.shape[1:])


def _joined_values(named: Mapping[str, Values]) -> Values:
    joined: dict[str, Tensor] = {}
    for name, values in named.items():
        if isinstance(values, Mapping):
            joined.update((leaf_name(name, leaf), x) for leaf, x in values.items())
        else:
            joined[name] = values
    return joined


def _mask_name(inputs: Inputs) -> str | None:
    """The name under which the module sees the action mask; None if there is none."""
    mask = mask_leaf(inputs.get("obs"))
    return leaf_name("obs", mask) if mask is not None and list(inputs) != ["obs"] else mask


def _first_leaf(inputs: Inputs) -> tuple[str, int]:
    """The first leaf as the module sees it, and the number of dimensions of a row of it."""
    leaf, column = next(iter(leaf_columns(input_columns(inputs)).items()))
    return leaf, len(column.shape)
