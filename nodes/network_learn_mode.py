"""The base of learn modes: networks by name, their targets, one `learn` for each train iteration, and their state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from flowrl.core.attribute_state import load_attributes, state_of_attributes
from flowrl.core.batch import Array, Batch
from flowrl.nodes.acting import ActionBox
from flowrl.nodes.compute import DEFAULT, Compute
from flowrl.nodes.configured_parts import configured_part
from flowrl.nodes.devices import CPU, to_device, to_numpy
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.input_columns import input_columns
from flowrl.nodes.observations import SEPARATOR
from flowrl.nodes.policy import LearnResult

if TYPE_CHECKING:
    from flowrl.nodes.algorithm import Algorithm, Net
    from flowrl.nodes.models.networks import LearnedNumber, Network, TrainableNetwork

NOT_STATE = ("policy", "config", "compute", "now", "box")


class LearnBatch:
    """The columns of a batch as tensors, such as `b.reward` and `b.obs` (by leaf if nested), made at their first use.

    `b.unit_action` are actions scaled to (-1, 1).
    """

    def __init__(
        self,
        batch: Batch | None,
        columns: Mapping[str, Any],
        box: ActionBox | None,
        device: str = CPU,
    ) -> None:
        self.batch, self._box, self._device = batch, box, device
        self.__dict__.update(columns)

    def __getattr__(self, name: str) -> Any:
        value = self._converted(name)
        self.__dict__[name] = value
        return value

    def _converted(self, name: str) -> Any:
        batch = self.batch
        if batch is not None and name in batch:
            return self._tensor(batch[name])
        if name == "unit_action" and self._box is not None:
            flat = self.action.flatten(1)
            return (flat - self._tensor(self._box.middle)) / self._tensor(self._box.half)
        prefix = name + SEPARATOR
        leaves = [] if batch is None else [k for k in batch if k.startswith(prefix)]
        if not leaves or batch is None:
            raise AttributeError(
                f"the batch has no column '{name}'; add it to `reads` of the algorithm"
            )
        return {k.removeprefix(prefix): self._tensor(batch[k]) for k in leaves}

    def _tensor(self, array: Array) -> Any:
        return to_device(array, self._device)

    def array(self, name: str) -> Array:
        """A column as an array, for what is computed in numpy."""
        if self.batch is not None and name in self.batch:
            return self.batch[name]
        return to_numpy(getattr(self, name))

    def __len__(self) -> int:
        return len(self.batch) if self.batch is not None else 0

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__ or (self.batch is not None and name in self.batch)

    def add(self, **columns: Any) -> None:
        """Add columns of tensors."""
        self.__dict__.update(columns)

    def weighted_mean(self, losses: Any) -> Any:
        """The mean of losses (B,), scaled by the weights with which a prioritised buffer corrects for its sampling."""
        return (losses * self.weight).mean() if "weight" in self else losses.mean()

    def joined_obs(self) -> Any:
        """Of sequences (W, T, …): the observations of all steps, and the last step's next observation (W, T + 1, …)."""
        obs, next_obs = self.obs, self.next_obs
        if isinstance(obs, dict):
            return {k: torch.cat([x[:, :1], next_obs[k]], 1) for k, x in obs.items()}
        return torch.cat([obs[:, :1], next_obs], 1)

    def minibatches(self, names: Sequence[str], order: Array, rows: int) -> Iterator[LearnBatch]:
        """Cut these columns into minibatches of so many rows, in the given order of rows."""
        index = self._tensor(order)
        pieces = [_split(getattr(self, name), index, rows) for name in names]
        for columns in zip(*pieces, strict=True):
            found = dict(zip(names, columns, strict=True))
            yield LearnBatch(None, found, self._box, self._device)


def _split(column: Any, order: Any, rows: int) -> Sequence[Any]:
    if not isinstance(column, Mapping):
        pieces: Sequence[Any] = column[order].split(rows)
        return pieces
    leaves = (leaf[order].split(rows) for leaf in column.values())
    return [dict(zip(column, pieces, strict=True)) for pieces in zip(*leaves, strict=True)]


class NetworkLearnMode:
    """Builds the networks of an algorithm; a subclass defines `learn`.

    Each network is an attribute by its name, such as `self.q`, and its target `self.q_target`. Attributes are state:
    numbers, arrays, generators and networks are saved without further ado, and what cannot be saved is refused when
    the learner is made.
    """

    def __init__(self, policy: Algorithm, seed: int, compute: Compute = DEFAULT) -> None:
        self.policy, self.config, self.compute = policy, policy.config, compute
        self.iters = 0  # finished train iterations
        self.rng = np.random.default_rng(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.now = SimpleNamespace()  # the scheduled settings of this train iteration
        self.box = policy.box
        for k, (name, net) in enumerate(policy.nets.items()):
            network = self._build(net, seed + k)
            setattr(self, name, network)
            if net.target is not None:
                setattr(self, f"{name}_target", network.frozen_copy())
        self.begin()
        state_of_attributes(self, NOT_STATE)  # refuses what cannot be saved

    def begin(self) -> None:
        """Make what the algorithm has beside its networks, such as a learned temperature."""

    def learn(self, b: LearnBatch) -> dict[str, Any]:
        """Do one train iteration; return metrics, and under `priority` the priority of each row if there is one."""
        raise NotImplementedError(f"{type(self).__name__} does not define learn")

    def forward(self, batch: Batch, command: Mapping[str, float]) -> LearnResult:
        self.now = SimpleNamespace(**command)
        b = LearnBatch(batch, {}, self.box, self.compute.device)
        for network in self._networks():
            network.draw_noise(self.generator)
        results = self.learn(b)
        self.iters += 1
        self._observe(b)
        self._update_targets()
        metrics = {n: v.detach() if hasattr(v, "detach") else v for n, v in results.items()}
        priority = metrics.pop("priority", None)
        return LearnResult(metrics, None if priority is None else to_numpy(priority))

    # for `learn`

    def tensor(self, array: Array) -> Any:
        """An array as a tensor where the networks are."""
        return to_device(array, self.compute.device)

    def normal(self, *shape: int) -> Any:
        """Numbers drawn from the standard normal distribution."""
        return torch.randn(shape, generator=self.generator).to(self.compute.device)

    def uniform(self, *shape: int) -> Any:
        """Numbers drawn uniformly from [0, 1)."""
        return torch.rand(shape, generator=self.generator).to(self.compute.device)

    def learned_number(self, value: float) -> LearnedNumber:
        """A number that is learned by gradients, such as a temperature."""
        from flowrl.nodes.models.networks import LearnedNumber

        return LearnedNumber(value, compute=self.compute)

    # its state

    def weights(self) -> dict[str, Array]:
        policy = self.policy
        model, heads = policy.nets[policy.acting_network].model, policy.acting_heads()
        network: Network = getattr(self, policy.acting_network)
        return network.weights(lambda name: model.is_acting_parameter(heads, name))

    def state_dict(self) -> dict[str, Any]:
        return state_of_attributes(self, NOT_STATE)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load_attributes(self, state, NOT_STATE)

    def _build(self, net: Net, seed: int) -> TrainableNetwork:
        from flowrl.nodes.models.networks import TrainableNetwork

        return TrainableNetwork(
            net.model.build(input_columns(net.inputs), net.heads, seed, net.copies),
            net.inputs,
            net.masked,
            recurrent=bool(net.model.memory_columns()),
            masks_each=net.masks_each,
            optimiser=configured_part(self.config, "optimiser"),
            max_grad_norm=self.config.max_grad_norm,
            compute=self.compute,
        )

    def _networks(self) -> Iterator[Network]:
        for name, net in self.policy.nets.items():
            yield getattr(self, name)
            if net.target is not None:
                yield getattr(self, f"{name}_target")

    def _observe(self, b: LearnBatch) -> None:
        """Let networks that normalise their inputs update their statistics.

        This is done last, because a train iteration must use the statistics that the actor used.
        """
        for name, net in self.policy.nets.items():
            network: Network = getattr(self, name)
            if not hasattr(network.module, "observe"):
                continue
            inputs = {
                n: b.unit_action if n == "action" and self.box else getattr(b, n)
                for n in net.inputs
            }
            if list(inputs) == ["obs"]:
                network.observe(inputs["obs"])
            else:
                network.observe(**inputs)

    def _update_targets(self) -> None:
        for name, net in self.policy.nets.items():
            if net.target is not None and (share := net.target.share_due(self.iters)):
                getattr(self, f"{name}_target").move_towards(getattr(self, name), share)
