"""The base of learn modes: networks by name, their targets, one `learn` for each train iteration, and their state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from flowrl.core.attribute_state import load_attributes, state_of_attributes
from flowrl.core.batch import Array, Batch
from flowrl.core.errors import InvalidResultError, shortened_repr
from flowrl.core.facts import UnsoundError
from flowrl.nodes.acting import ActionBox
from flowrl.nodes.compute import DEFAULT, Compute
from flowrl.nodes.configured_parts import configured_part
from flowrl.nodes.devices import to_device, to_numpy
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.input_columns import input_columns
from flowrl.nodes.observations import SEPARATOR
from flowrl.nodes.policy import LearnResult
from flowrl.nodes.returns import normalise

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
        compute: Compute = DEFAULT,
        places: Array | None = None,
    ) -> None:
        """`places` are those of these rows among the rows of a group of learners; None: one behind another."""
        self.batch, self._box, self._places = batch, box, places
        self._compute, self._device, self._group = compute, compute.device, compute.group
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
            flat = self.action.flatten(-self._box.dims)  # (B, n), or (B, N, n) of several agents
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

    @property
    def rows_of_group(self) -> int:
        """The rows of all learners of the group; alone, the rows of this batch."""
        return len(self) if self._group.size == 1 else self._group.count_all(len(self))

    @property
    def places(self) -> Array:
        """The places of these rows among those of all learners of the group."""
        if self._places is not None:
            return self._places
        return self._group.begin + np.arange(len(self))

    def minibatches(self, names: Sequence[str], order: Array, rows: int) -> Iterator[LearnBatch]:
        """Cut these columns into minibatches of so many rows, in the given order of rows (of all in the group)."""
        if self._group.size == 1:
            yield from self._cut(names, order, rows)
            return
        share = self._group.share
        for chosen in np.split(order, range(rows, len(order), rows)):
            own = self._own_rows(chosen)
            self._group.share = len(own) / len(chosen)
            index = self._tensor(own)
            yield self._with_columns({n: _select(getattr(self, n), index) for n in names})
        self._group.share = share

    def pieces(self, names: Sequence[str], rows: int) -> Iterator[LearnBatch]:
        """Cut these columns into pieces of so many rows, in their order."""
        return self._cut(names, np.arange(len(self)), rows)

    def _cut(self, names: Sequence[str], order: Array, rows: int) -> Iterator[LearnBatch]:
        index = self._tensor(order)
        pieces = [_split(getattr(self, name), index, rows) for name in names]
        for columns in zip(*pieces, strict=True):
            yield self._with_columns(dict(zip(names, columns, strict=True)))

    def _with_columns(self, columns: Mapping[str, Any]) -> LearnBatch:
        return LearnBatch(None, columns, self._box, self._compute)

    def _own_rows(self, chosen: Array) -> Array:
        """The rows of this learner among those chosen of all in the group."""
        places = self.places
        order = np.argsort(places)
        found = np.searchsorted(places, chosen, sorter=order).clip(max=len(places) - 1)
        own: Array = order[found]
        return own[places[own] == chosen]


def _select(column: Any, index: Any) -> Any:
    # `column[index]` gives the same rows, but takes nine times as long for images
    if isinstance(column, Mapping):
        return {leaf: values.index_select(0, index) for leaf, values in column.items()}
    return column.index_select(0, index)


def _split(column: Any, order: Any, rows: int) -> Sequence[Any]:
    selected = _select(column, order)
    if not isinstance(selected, Mapping):
        pieces: Sequence[Any] = selected.split(rows)
        return pieces
    leaves = (leaf.split(rows) for leaf in selected.values())
    return [dict(zip(column, pieces, strict=True)) for pieces in zip(*leaves, strict=True)]


class NetworkLearnMode:
    """Builds the networks of an algorithm; a subclass defines `learn`.

    Each network is an attribute by its name, such as `self.q`, and its target `self.q_target`. Attributes are state:
    numbers, arrays, generators and networks are saved without further ado, and what cannot be saved is refused when
    the learner is made.
    """

    def __init__(self, policy: Algorithm, seed: int, compute: Compute = DEFAULT) -> None:
        self.policy, self.config, self.compute = policy, policy.config, compute
        if compute.group.size > 1 and policy.refuses_groups:
            raise UnsoundError(policy.refuses_groups, "give it one learner", "policy")
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
        self.compute.group.set_rows(len(batch))
        b = LearnBatch(batch, {}, self.box, self.compute)
        for network in self._networks():
            network.draw_noise(self.generator)
        results = self.learn(b)
        if not isinstance(results, Mapping):
            raise InvalidResultError(
                f"{type(self).__qualname__}.learn returned {shortened_repr(results)}; expected metrics by "
                'name, such as {"loss": loss}'
            )
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

    def normal(self, rows: int, *shape: int) -> Any:
        """Numbers (rows, …) drawn from the standard normal distribution, for each row of the batch."""
        return self._drawn(torch.randn, rows, shape)

    def uniform(self, rows: int, *shape: int) -> Any:
        """Numbers (rows, …) drawn uniformly from [0, 1), for each row of the batch."""
        return self._drawn(torch.rand, rows, shape)

    def _drawn(self, draw: Callable[..., Any], rows: int, shape: tuple[int, ...]) -> Any:
        group = self.compute.group
        if group.size == 1:
            return draw((rows, *shape), generator=self.generator).to(self.compute.device)
        drawn = draw((group.rows, *shape), generator=self.generator)
        return drawn[group.begin : group.begin + rows].to(self.compute.device)

    def of_group(self, values: Array) -> Array:
        """Numbers (N,) of all learners of the group; alone, these numbers."""
        group = self.compute.group
        return values if group.size == 1 else group.gather(torch.from_numpy(values)).numpy()

    def over_group(self, function: Callable[[Any], Any], values: Any) -> Any:
        """A function of numbers (N,) that depends on all of them, such as a softmax, over all learners of the group."""
        group = self.compute.group
        return group.own_part(function(group.gather(values)), len(values))

    def normalised(self, values: Array) -> Array:
        """Numbers (N,) shifted and scaled to mean 0 and standard deviation 1, over all learners of the group."""
        return self.compute.group.own_part(normalise(self.of_group(values)), len(values))

    def mean_of_group(self, mean: Any) -> Any:
        """The mean over the rows of the group, given that over the rows of this learner."""
        group = self.compute.group
        return mean if group.size == 1 else group.sum(mean * group.share)

    def mean_where(self, valid: Any, values: Any) -> Any:
        """The sum of values, which are 0 where they are not valid, over the number of valid ones."""
        group, count = self.compute.group, valid.sum()
        if group.size == 1:
            return values.sum() / count.clamp(min=1)
        # The gradient will be weighted by the share of the rows, which this mean does not weight by.
        return values.sum() / (group.sum(count).clamp(min=1) * group.share)

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
            heads={} if net.copies else net.heads,
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
        from flowrl.nodes.models.networks import map_values

        for name, net in self.policy.nets.items():
            network: Network = getattr(self, name)
            if not (network.keeps_statistics and hasattr(network.module, "observe")):
                continue
            inputs = self.observed_inputs(net, b)
            if self.compute.group.size > 1:
                gather = self.compute.group.gather
                inputs = {n: map_values(values, gather) for n, values in inputs.items()}
            if list(inputs) == ["obs"]:
                network.observe(inputs["obs"])
            else:
                network.observe(**inputs)

    def observed_inputs(self, net: Net, b: LearnBatch) -> dict[str, Any]:
        """What the statistics of a network's inputs are updated with, by the names of the inputs."""
        return {
            n: b.unit_action if n == "action" and self.box else getattr(b, n) for n in net.inputs
        }

    def _update_targets(self) -> None:
        for name, net in self.policy.nets.items():
            if net.target is not None and (share := net.target.share_due(self.iters)):
                getattr(self, f"{name}_target").move_towards(getattr(self, name), share)
