"""Communication in a team (ATOC): who forms a group with whom, and acting by what groups make of their thoughts.

Groups are chosen in numpy, when learning too, so that the learner and everyone who acts choose the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.channel import INTEGRATED, JOINED, THOUGHTS
from flowrl.nodes.models.model import InferenceModel
from flowrl.nodes.multi_agent import ALIVE
from flowrl.nodes.observations import NestedColumns

if TYPE_CHECKING:
    from torch import Tensor

# The networks of an agent that acts, in the order in which they are called.
THOUGHT, ATTENTION, CHANNEL, ACTOR = "thought", "attention", "channel", "actor"
ACTING = (THOUGHT, ATTENTION, CHANNEL, ACTOR)
WANTS = "wants"  # the head of the attention unit: positive if the agent wants to communicate

# The order in which an initiator prefers others. Among equals it prefers those that are nearer.
ITSELF, FREE, SELECTED, INITIATOR, ABSENT = range(5)


class Groups(NamedTuple):
    """The group of each agent as an initiator; an agent that initiates nothing has a group without members."""

    members: Array  # (B, N, K): the initiator, and then those that it prefers
    joined: Array  # (B, N, K) bool: which of them take part


def channel_columns(members: int, size: int) -> NestedColumns:
    """What the channel sees of a group, with thoughts of this size."""
    thoughts, joined = Column("float32", (members, size)), Column("float32", (members,))
    return NestedColumns({THOUGHTS: thoughts, JOINED: joined})


def squared_distances(places: Array) -> Array:
    """From each agent to each: (B, N, D) to (B, N, N)."""
    differences = places[:, :, None] - places[:, None]
    found: Array = np.square(differences).sum(-1)
    return found


def choose_groups(distance: Array, wants: Array, alive: Array, members: int) -> Groups:
    """The groups of those that want to communicate (B, N) and are there, of so many members at most.

    One initiator chooses after another: of the agents that are there first those that nobody has selected, then those
    that others have, and at last other initiators, each time the nearest (Jiang & Lu 2018, section 4.2). An agent that
    finds nobody initiates nothing.
    """
    initiates, selected = wants & alive, np.zeros_like(alive)
    groups = []
    for i in range(alive.shape[1]):
        rank = np.where(initiates, INITIATOR, np.where(selected, SELECTED, FREE))
        group = _nearest(i, distance, rank, alive, members)
        group.joined[:] &= initiates[:, i, None]
        before = np.take_along_axis(selected, group.members, 1)
        np.put_along_axis(selected, group.members, before | group.joined, 1)
        groups.append(group)
    return _stacked(groups)


def lone_groups(distance: Array, alive: Array, members: int) -> Groups:
    """For each agent that is there its group if it alone communicated."""
    rank = np.full(alive.shape, FREE)
    return _stacked([_nearest(i, distance, rank, alive, members) for i in range(alive.shape[1])])


def _nearest(i: int, distance: Array, rank: Array, alive: Array, members: int) -> Groups:
    """The group (B, K) of one agent, if there is anybody to talk to."""
    rank = np.where(alive, rank, ABSENT)
    rank[:, i] = ITSELF
    found = np.lexsort((distance[:, i], rank))[:, :members]
    joined = np.take_along_axis(alive, found, 1)
    joined &= joined[:, :1] & joined[:, 1:2]
    return Groups(found, joined)


def _stacked(groups: list[Groups]) -> Groups:
    return Groups(*(np.stack(parts, 1) for parts in zip(*groups, strict=True)))


def integrate(
    channel: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]],
    thoughts: Tensor,
    groups: Groups,
    tensor: Callable[[Array], Tensor],
) -> Tensor:
    """What the channel makes of thoughts (B, N, H), group by group; of agents in no group, their own thoughts.

    An agent of several groups brings to the second what it has of the first one (section 4.2).
    """
    members, joined = tensor(groups.members), tensor(groups.joined)
    found = thoughts
    for i in range(thoughts.shape[1]):
        at = members[:, i, :, None].expand(-1, -1, thoughts.shape[-1])
        said, joins = found.gather(1, at), joined[:, i]
        heard = channel({THOUGHTS: said, JOINED: joins.float()})[INTEGRATED]
        found = found.scatter(1, at, torch.where(joins.unsqueeze(-1), heard, said))
    return found


def of_members(values: Tensor, members: Tensor) -> Tensor:
    """Of each agent's group (B, N, K) the values of its members: (B, N, …) to (B, N, K, …)."""
    rows = torch.arange(len(values), device=values.device).view(-1, 1, 1)
    return values[rows, members]


class CommunicatingModel:
    """Acts for whole teams, of which each agent is a row, by models of the networks `ACTING`."""

    def __init__(
        self,
        models: Mapping[str, InferenceModel],
        group_of: Callable[[Array, Array, Array, Array], Groups],
        agents: int,
        columns: NestedColumns,
    ) -> None:
        """`group_of` are the groups by observations, thoughts, wishes and presence; `columns` those of the channel."""
        self._models, self._group_of = dict(models), group_of
        self._agents, self._columns = agents, columns

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Use the weights of all networks from now on, whose names begin with those of their networks."""
        for network, model in self._models.items():
            prefix = f"{network}."
            own = {n.removeprefix(prefix): x for n, x in arrays.items() if n.startswith(prefix)}
            model.load(own)

    def __call__(self, obs: Array, memory: Array | None = None) -> dict[str, Array]:
        """Map what agents observe (B N,) to the heads of the actor (B N, …)."""
        thoughts = np.tanh(self._models[THOUGHT](obs)[THOUGHT])
        wants = self._models[ATTENTION](thoughts)[WANTS] > 0
        by_team = (-1, self._agents)
        of_agents = thoughts.reshape(*by_team, thoughts.shape[-1])
        alive = obs[ALIVE].reshape(by_team) != 0
        groups = self._group_of(obs.reshape(by_team), of_agents, wants.reshape(by_team), alive)
        integrated = self._integrated(of_agents, groups).reshape(thoughts.shape)
        return self._models[ACTOR](np.concatenate([thoughts, integrated], -1))

    def _integrated(self, thoughts: Array, groups: Groups) -> Array:
        """What the channel makes of thoughts (B, N, H), group by group; of agents in no group, their own thoughts."""
        found = thoughts.copy()
        for members, joined in zip(
            groups.members.swapaxes(0, 1), groups.joined.swapaxes(0, 1), strict=True
        ):
            teams = np.flatnonzero(joined.any(1))
            if not len(teams):
                continue
            at, joins = members[teams], joined[teams]
            inputs = self._columns.empty(len(teams))
            inputs[THOUGHTS], inputs[JOINED] = found[teams[:, None], at], joins
            outputs = self._models[CHANNEL](inputs)[INTEGRATED]
            found[teams[:, None], at] = np.where(joins[..., None], outputs, inputs[THOUGHTS])
        return found
