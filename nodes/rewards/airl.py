"""Adversarial inverse reinforcement learning (Fu, Luo & Levine 2018): a reward that explains what the expert does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from flowrl.core.batch import Array, Batch
from flowrl.core.config import param, part
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.core.ports import StateIn
from flowrl.core.state import State
from flowrl.nodes import losses
from flowrl.nodes.actor_critic import ActorCritic
from flowrl.nodes.algorithm import Net
from flowrl.nodes.configured_policies import policy_for
from flowrl.nodes.imitation import ImitationModel
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.heads import ScalarHead
from flowrl.nodes.models.input_columns import input_columns
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.policy import acting_facts, weights_facts
from flowrl.nodes.reward_steps import StepBatch, StepColumns

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import Network, TrainableNetwork


class Airl(ImitationModel):
    """Rewards steps by the logit of a discriminator, log D / (1 - D) = f(s, a, s') - log pi(a | s).

    f is g(s, a) + discount h(s') - h(s): a reward g, and the shaping by h that does not change which policy is best.
    The likelihood is that of the policy that learns, whose weights are an input.
    """

    weights = StateIn("weights", about="the weights of the policy that learns")

    reads = ("obs", "action", "next_obs", "discount")

    class Config(ImitationModel.Config):
        policy: Any = part("policy", "the policy that learns", shared="policy")
        model: Any = part(
            "model", "the networks of g and h", default={"type": "auto", "hidden": [64, 64]}
        )
        state_only: bool = param(False, "g sees observations only, so that it fits other dynamics")
        form: Literal["positive", "negative", "signed"] = param(
            "signed",
            "the reward: signed: log D - log(1 - D); positive: -log(1 - D); negative: log D",
        )

    reward_network: TrainableNetwork
    shaping_network: TrainableNetwork
    policy_network: Network

    @classmethod
    def networks(cls, config: Any, steps: StepColumns) -> dict[str, Net]:
        seen = {"obs": steps.obs}
        inputs = seen if config.state_only else {**seen, "action": steps.action}
        model, heads = cls.model_of(config), {"value": ScalarHead()}
        return {
            "reward_network": Net(model, inputs, heads),
            "shaping_network": Net(model, seen, heads),
        }

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        facts = super().describe(config, surroundings)
        steps = StepColumns.of(cls.type_name(), surroundings.inputs["data"] or {})
        policy = learning_policy(config, steps)
        weights = weights_facts({"weights": (policy, "policy")})
        return replace(facts, **weights, **acting_facts({"policy": policy}, False, False))

    def make_parts(self, steps: StepColumns) -> None:
        super().make_parts(steps)
        from flowrl.nodes.models.networks import Network

        self.learning = learning_policy(self.config, steps)
        net = self.learning.nets[self.learning.acting_network]
        heads = {name: net.heads[name] for name in self.learning.acting_heads()}
        module = net.model.build(input_columns(net.inputs), heads, seed=0)
        self.policy_network = Network(module.requires_grad_(False), net.inputs, net.masked)

    def fire(self, data: Batch, expert: Batch | None, weights: State) -> Batch:  # type: ignore[override]
        """Return the rows with the bonus in their reward; keep the expert's rows."""
        if expert is not None:
            self.keep_expert(expert)
        self.policy_network.load_weights(weights.arrays)
        return self.rewarded(data)

    def as_steps(self, columns: Mapping[str, Array], expert: StepBatch | None = None) -> StepBatch:
        """The steps, with the logarithms of their actions' likelihoods by the newest policy as `logp`."""
        steps = super().as_steps(columns, expert)
        b = LearnBatch(Batch(columns), {}, None)
        # The expert's rows have clipped actions only.
        b.add(unclipped=b.action.reshape(len(b.action), -1))
        with torch.no_grad():
            heads = self.policy_network(b.obs)
            logp, _ = self.learning.distribution.logp_entropy(heads, b)
        steps.add(logp=logp)
        return steps

    def logit(self, b: StepBatch) -> Any:
        """f(s_t, a_t, s_tp1) - log pi(a_t | s_t): equation 4 and section 6."""
        inputs = {name: getattr(b, name) for name in self.reward_network.inputs}
        g_t = call(self.reward_network, inputs)
        h_t, h_tp1 = (call(self.shaping_network, {"obs": obs}) for obs in (b.obs, b.next_obs))
        return g_t + b.discount * h_tp1 - h_t - b.logp

    def bonus(self, b: StepBatch) -> Any:
        return losses.imitation_reward(self.config.form, self.logit(b))

    def train(self, b: StepBatch) -> dict[str, Any]:
        """One step up E_expert log D + E_agent log(1 - D): algorithm 1."""
        agent, expert = self.logit(b), self.logit(b.expert)
        loss = losses.discriminator_loss(agent, expert)
        norm = self.reward_network.descend(loss, self.lr, also=[self.shaping_network])
        shares = {
            "agent_share": (agent < 0).float().mean(),
            "expert_share": (expert > 0).float().mean(),
        }
        return {"discriminator_loss": loss.detach(), "grad_norm": norm, **shares}


def call(network: Network, inputs: Mapping[str, Any]) -> Any:
    """The values (N,) of inputs by name."""
    heads = network(inputs["obs"]) if list(inputs) == ["obs"] else network(**inputs)
    return heads["value"]


def learning_policy(config: Any, steps: StepColumns) -> ActorCritic:
    """The policy that learns; raise if the likelihoods of its actions are not known."""
    policy = policy_for(config.policy, steps.obs, steps.columns["action"], "policy")
    if not isinstance(policy, ActorCritic) or policy.memory_columns():
        what = f"airl needs the likelihoods of actions, and {type(policy).__name__.lower()} does not give them"
        raise UnsoundError(
            what, "take ppo or a2c without memory, or the reward model gail", "policy"
        )
    return policy
