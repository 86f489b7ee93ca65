"""ATOC (Jiang & Lu 2018): agents that learn when to communicate, and act by what groups make of their thoughts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import PositiveInt

from flowrl.core.batch import Array, Column
from flowrl.core.config import param, part
from flowrl.core.facts import UnsoundError
from flowrl.nodes.agent_rewards import AgentRewardsLearnMode
from flowrl.nodes.algorithm import Net
from flowrl.nodes.central_critic import DEFAULT_MODEL
from flowrl.nodes.communication import (
    ACTING,
    ACTOR,
    ATTENTION,
    CHANNEL,
    THOUGHT,
    WANTS,
    CommunicatingModel,
    Groups,
    channel_columns,
    choose_groups,
    integrate,
    lone_groups,
    of_members,
    squared_distances,
)
from flowrl.nodes.devices import to_numpy
from flowrl.nodes.differentiable_actions import DeterministicActors
from flowrl.nodes.lazy import functional, torch
from flowrl.nodes.models.action_mask import FORBIDDEN
from flowrl.nodes.models.channel import INTEGRATED, JOINED, THOUGHTS, Channel
from flowrl.nodes.models.features import ACTION_MASK
from flowrl.nodes.models.heads import LinearHead, ScalarHead
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.model import InferenceModel
from flowrl.nodes.multi_agent import ALIVE, OWN
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.observations import NestedColumns
from flowrl.nodes.schedules import Scheduled, scheduled

if TYPE_CHECKING:
    from torch import Tensor

    from flowrl.nodes.models.networks import Network, TrainableNetwork

TAKEN = "taken"  # what an agent does, as its critic sees it


class Atoc(DeterministicActors):
    """Learns deterministic actors that agents share, from replayed steps, and when it pays to communicate.

    What an agent makes of its observation is a row of numbers, its thought. If its attention unit says so, it gathers a
    group in each step, and a channel gives each member a thought that depends on all of theirs. The actor chooses an
    action by both thoughts.
    """

    observes_presence = True

    class Config(DeterministicActors.Config):
        actor: Any = part(
            "model",
            "the network from an observation to a thought",
            shared="model",
            default=DEFAULT_MODEL,
        )
        critic: Any = part(
            "model", "the network of Q(o, a) of one agent", shared="model", default=DEFAULT_MODEL
        )
        thought_size: int = param(64, "numbers of a thought", ge=2, multiple_of=2)
        attention_hidden: list[PositiveInt] = param(
            [32], "hidden layers of the attention unit, which says whether to communicate"
        )
        action_hidden: list[PositiveInt] = param(
            [64], "hidden layers of the network from both thoughts to an action"
        )
        collaborators: int = param(2, "agents that one gathers, if there are so many others", ge=1)
        position: list[list[int]] = param(
            [],
            "ranges [begin, end) of the entries of each agent's observation that say where it is: it gathers the "
            "nearest agents; if none are given, those with the nearest thoughts",
        )
        attention_lr: Scheduled = scheduled(5e-4, "learning rate of the attention unit", ge=0)

    def setup(self) -> None:
        super().setup()
        if self.agents.count == 1:
            what = "atoc learns when to communicate, and there is one agent"
            raise UnsoundError(what, "take an env with several agents, or the policy ddpg", "env")
        self.members = min(self.config.collaborators + 1, self.agents.count)
        instead = "leave it out, so that agents gather those with the nearest thoughts"
        ranges = self.config.position
        self._position_entries = (
            np.flatnonzero(self.entries_of_own(ranges, "position", instead)) if ranges else None
        )

    def networks(self) -> dict[str, Net]:
        c, size, choice = self.config, self.config.thought_size, self.choice
        own = {n: column for n, column in self.own_obs.columns.items() if n != ALIVE}
        seen = NestedColumns(own)
        unit, both = Mlp(hidden=c.attention_hidden), Mlp(hidden=c.action_hidden)
        thought, thoughts = Column("float32", (size,)), Column("float32", (2 * size,))
        group = channel_columns(self.members, size)
        integrated = {INTEGRATED: LinearHead(self.members, each=size)}
        action = Column("float32", (self.action_size,))
        return {
            THOUGHT: Net(
                self.model("actor"), {"obs": seen}, {THOUGHT: LinearHead(size)}, target=c.target
            ),
            ATTENTION: Net(unit, {"obs": thought}, {WANTS: ScalarHead()}, target=c.target),
            CHANNEL: Net(Channel(), {"obs": group}, integrated, target=c.target),
            ACTOR: Net(
                both, {"obs": thoughts}, choice.heads, target=c.target, masked=choice.masked
            ),
            "critic": Net(
                self.model("critic"),
                {"obs": seen, TAKEN: action},
                {"value": ScalarHead()},
                target=c.target,
            ),
        }

    def acting_parts(self) -> Sequence[Any]:
        nets = [self.nets[name] for name in ACTING]
        settings = [(net.model.acting_settings(), net.inputs, net.heads) for net in nets]
        return [self.agents.count, self.members, self._position_entries, settings]

    def inference_model(self, rng: np.random.Generator | None, device: str) -> InferenceModel:
        models = {}
        for name in ACTING:
            net = self.nets[name]
            obs = net.inputs["obs"]
            models[name] = net.model.inference_model(obs, net.heads, tuple(net.heads), rng, device)
        columns = channel_columns(self.members, self.config.thought_size)

        def group_of(obs: Array, thoughts: Array, wants: Array, alive: Array) -> Groups:
            distance = self.distance(obs[OWN], thoughts)
            return choose_groups(distance, wants, alive, self.members)

        return CommunicatingModel(models, group_of, self.agents.count, columns)

    def imported_modules(self, learn: bool) -> tuple[str, ...]:
        nets = [self.nets[name] for name in ACTING]
        acts = any(net.model.acts_in_torch(net.inputs["obs"], net.heads) for net in nets)
        return ("torch",) if learn or acts else ()

    def distance(self, observed: Array, thoughts: Array) -> Array:
        """From each agent to each (B, N, N): between their positions in what they observe, or their thoughts."""
        at = self._position_entries
        return squared_distances(thoughts if at is None else observed[..., at])

    class Learn(AgentRewardsLearnMode):
        """One gradient step for the critic, one for the actor with its channel, and one for the attention unit."""

        thought: TrainableNetwork
        attention: TrainableNetwork
        channel: TrainableNetwork
        actor: TrainableNetwork
        critic_target: Network
        policy: Atoc

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            b.add(**{TAKEN: self.policy.choice.taken(b)})
            q_t = self.value(self.critic, self.own(b.obs), getattr(b, TAKEN))
            found = self.learn_critic(b, q_t.unsqueeze(1), self.target_values(b))
            return {**found, **self.learn_actor(b)}

        def target_values(self, b: LearnBatch) -> Tensor:
            """r_t + discount_t Q_target(o_tp1, a_tp1) of each agent (B, N), by what the target networks do next."""
            choice, networks = self.policy.choice, self.acting_networks("_target")
            with torch.no_grad():
                own = self.own(b.next_obs)
                thoughts = self.thoughts(networks[THOUGHT], own)
                groups = self.groups(own, thoughts, networks[ATTENTION](thoughts)[WANTS])
                integrated = integrate(networks[CHANNEL], thoughts, groups, self.tensor)
                outputs = self.outputs(networks[ACTOR], own, thoughts, integrated)
                action = choice.of(outputs, choice.noise(self, outputs))
                q_tp1 = self.value(self.critic_target, own, action)
                reward, discount = self.tensor(self.rewards(b)), self.tensor(self.discounts(b))
                found: Tensor = reward + discount * q_tp1
            return found

        def learn_actor(self, b: LearnBatch) -> dict[str, Any]:
            """Increase Q(o, a) by what agents do after communicating; learn which of them should communicate."""
            choice, own, alive = self.policy.choice, self.own(b.obs), self.alive(b.obs)
            thoughts = self.thoughts(self.thought, own)
            wants = self.attention(thoughts.detach())[WANTS]
            groups = self.groups(own, thoughts, wants)
            integrated = integrate(self.channel, thoughts, groups, self.tensor)
            outputs = self.outputs(self.actor, own, thoughts, integrated)
            noise = choice.noise(self, outputs)
            q = self.value(self.critic, own, choice.of(outputs, noise))
            gains, possible = self.gains(own, thoughts)
            loss = -self.mean_where(alive, q * alive)
            squares = self.mean_where(alive, choice.squares(outputs) * alive)
            loss = loss + self.config.regularisation * squares
            self.thought.descend(loss, self.now.lr, [self.channel, self.actor])
            attention_loss = self.learn_attention(wants, gains, possible)
            initiates = self.tensor(groups.joined)[..., 0].float()
            share = self.mean_where(alive, initiates)
            return {"actor_loss": loss, "attention_loss": attention_loss, "communicating": share}

        def learn_attention(self, wants: Tensor, gains: Tensor, possible: Tensor) -> Tensor:
            """-g log p - (1 - g) log(1 - p) with gains g that are scaled to [0, 1] (section 4.3)."""
            goal = self.scaled(gains, possible)
            errors = functional.binary_cross_entropy_with_logits(wants, goal, reduction="none")
            loss: Tensor = self.mean_where(possible, errors * possible)
            self.attention.descend(loss, self.now.attention_lr)
            return loss

        def gains(self, own: Mapping[str, Tensor], thoughts: Tensor) -> tuple[Tensor, Tensor]:
            """What the agents of a group gain in the mean if one communicates (B, N), and 1 where it finds a group.

            The gain is the difference of Q(o, a) with and without communication (section 4.3). It is that of the group
            if nobody else communicated, so that agents that do not communicate have one, too.
            """
            distance = self.policy.distance(to_numpy(own[OWN]), to_numpy(thoughts))
            groups = lone_groups(distance, to_numpy(own[ALIVE]) != 0, self.policy.members)
            members, joined = self.tensor(groups.members), self.tensor(groups.joined).float()
            with torch.no_grad():
                theirs = {leaf: of_members(x, members) for leaf, x in own.items()}
                said = of_members(thoughts, members)
                heard = self.channel({THOUGHTS: said, JOINED: joined})[INTEGRATED]
                together, alone = (self.outputs(self.actor, theirs, said, x) for x in (heard, said))
                gain = self.difference(theirs, together, alone)
                sizes = joined.sum(-1)
            return (gain * joined).sum(-1) / sizes.clamp(min=1), (sizes > 0).float()

        def difference(self, own: Mapping[str, Tensor], first: Tensor, second: Tensor) -> Tensor:
            """How much higher Q(o, a) is by the first outputs of the actor than by the second ones.

            With discrete actions, both are means over what the actor draws.
            """
            choice = self.policy.choice
            if choice.is_real:
                a, b = (self.value(self.critic, own, outputs.tanh()) for outputs in (first, second))
                return a - b
            each = torch.eye(choice.size, device=first.device)
            q = [self.value(self.critic, own, one.expand(*first.shape[:-1], -1)) for one in each]
            return ((first.softmax(-1) - second.softmax(-1)) * torch.stack(q, -1)).sum(-1)

        def scaled(self, gains: Tensor, possible: Tensor) -> Tensor:
            """Gains from 0, the least one of agents that find a group, to 1, the largest one."""
            finds = self.of_group(to_numpy(possible)) != 0
            known = self.of_group(to_numpy(gains))[finds]
            if not len(known):
                return gains
            low = float(known.min())
            width = max(float(known.max()) - low, float(np.finfo(np.float32).tiny))
            found: Tensor = ((gains - low) / width).clamp(0, 1)
            return found

        # what agents think, and with whom

        def acting_networks(self, suffix: str = "") -> dict[str, Network]:
            """The networks that act, or their targets, by name."""
            return {name: getattr(self, name + suffix) for name in ACTING}

        def thoughts(self, network: Network, own: Mapping[str, Any]) -> Tensor:
            """The thoughts of agents (…, N, H)."""
            return network(own)[THOUGHT].tanh()

        def groups(self, own: Mapping[str, Any], thoughts: Tensor, wants: Tensor) -> Groups:
            """The groups of those that want to communicate."""
            distance = self.policy.distance(to_numpy(own[OWN]), to_numpy(thoughts))
            alive = to_numpy(own[ALIVE]) != 0
            return choose_groups(distance, to_numpy(wants) > 0, alive, self.policy.members)

        def outputs(
            self, actor: Network, own: Mapping[str, Any], thoughts: Tensor, integrated: Tensor
        ) -> Tensor:
            """What the actor makes of both thoughts: (…, n)."""
            choice = self.policy.choice
            found: Tensor = actor(torch.cat([thoughts, integrated], -1))[choice.head]
            if choice.masked and ACTION_MASK in own:
                found = found.masked_fill(own[ACTION_MASK] == 0, FORBIDDEN)
            return found

        def value(self, critic: Network, own: Mapping[str, Any], action: Tensor) -> Tensor:
            """Q(o, a) of each agent."""
            inputs: dict[str, Any] = {"obs": own, TAKEN: action}
            found: Tensor = critic(**inputs)["value"]
            return found

        def weights(self) -> dict[str, Array]:
            return {
                f"{name}.{parameter}": x
                for name, network in self.acting_networks().items()
                for parameter, x in network.weights().items()
            }

        def observed_inputs(self, net: Net, b: LearnBatch) -> dict[str, Any]:
            found = super().observed_inputs(net, b)
            if TAKEN in found:
                found[TAKEN] = found[TAKEN][b.obs[ALIVE] != 0]
            return found
