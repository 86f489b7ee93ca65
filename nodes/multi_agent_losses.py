"""The mathematics of gradients for several agents: pure functions of tensors with an axis of N agents.

Names follow rlax: `x_t` belongs to step t. `alive` (…, N) is 1 for agents that act.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowrl.nodes.lazy import functional, torch
from flowrl.nodes.losses import chosen
from flowrl.nodes.models.action_mask import FORBIDDEN

if TYPE_CHECKING:
    from torch import Tensor


def counterfactual_advantage(q_t: Tensor, p_t: Tensor, action_t: Tensor) -> Tensor:
    """A_i = Q(s, u) - sum_a p_i(a) Q(s, (u_-i, a)) (Foerster et al. 2018, equation 4).

    `q_t` (…, N, n) are the values of each action of agent i while the others do what they did: (…, N).
    """
    return chosen(q_t, action_t) - (p_t * q_t).sum(-1)


def floored_probabilities(logits: Tensor, epsilon: float) -> Tensor:
    """(1 - epsilon) softmax(logits) + epsilon / (the number of allowed actions), where allowed (Foerster et al. 2018).

    Forbidden actions have the logit `FORBIDDEN`.
    """
    allowed = (logits > FORBIDDEN).to(logits.dtype)
    return (1 - epsilon) * logits.softmax(-1) + epsilon * allowed / allowed.sum(-1, keepdim=True)


def actions_of_others(actions: Tensor) -> Tensor:
    """What each agent sees of the joint action (…, N, n): that of the others, and zeros in its own place.

    (…, N, n) to (…, N, N * n)
    """
    n_agents = actions.shape[-2]
    others = 1 - torch.eye(n_agents, device=actions.device, dtype=actions.dtype)
    seen = actions.unsqueeze(-3) * others.unsqueeze(-1)  # (…, N, N, n): agent, whose action
    return seen.flatten(-2)


def with_own_action(actions: Tensor, own: Tensor) -> Tensor:
    """For each agent the joint action in which it alone acts anew: (…, N, n), (…, N, n) to (…, N, N, n).

    Entry i is (u_1, …, own_i, …, u_N) (Lowe et al. 2017, equation 5).
    """
    n_agents = actions.shape[-2]
    is_own = torch.eye(n_agents, device=actions.device, dtype=torch.bool).unsqueeze(-1)
    return torch.where(is_own, own.unsqueeze(-3), actions.unsqueeze(-3))


def gumbel_softmax(logits: Tensor, uniform: Tensor, temperature: float) -> Tensor:
    """One-hot actions drawn from softmax(logits), with the gradient of softmax((logits + g) / temperature).

    g = -log(-log u) with u from [0, 1) (Jang et al. 2017, equation 2, and section 2.2).
    """
    smallest = torch.finfo(uniform.dtype).tiny
    gumbel = -(-uniform.clamp(min=smallest).log()).clamp(min=smallest).log()
    soft = ((logits + gumbel) / temperature).softmax(-1)
    hard = functional.one_hot(soft.argmax(-1), soft.shape[-1]).to(soft.dtype)
    return hard + soft - soft.detach()


def next_factor(factor: Tensor, log_ratio: Tensor) -> Tensor:
    """M^{1:m+1} = M^{1:m} pi_new / pi_old, by the agent that was improved last (Kuba et al. 2022, equation 11)."""
    return factor * log_ratio.exp()
