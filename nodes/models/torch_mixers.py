"""The torch modules that mix the values of agents."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

SMALLEST = 1e-10  # added to weights that must be positive


def state_network(inputs: int, width: int, outputs: int) -> nn.Module:
    """A network of the state with one hidden layer, or with none if its width is 0."""
    if not width:
        return nn.Linear(inputs, outputs)
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))


class TorchMonotonicMixer(nn.Module):
    """Q_tot = |w_2(s)| · elu(|W_1(s)| q + b_1(s)) + v(s) (Rashid et al. 2018, figure 2)."""

    def __init__(self, agents: int, state: int, width: int, hyper_width: int) -> None:
        super().__init__()
        self.agents, self.width = agents, width
        self.weight_1 = state_network(state, hyper_width, agents * width)
        self.bias_1 = nn.Linear(state, width)
        self.weight_2 = state_network(state, hyper_width, width)
        self.value = state_network(state, width, 1)

    def forward(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Values (B, N) and states (B, S) to totals (B,)."""
        q, s = obs["values"], obs["state"]
        weight_1 = self.weight_1(s).abs().view(-1, self.agents, self.width)
        hidden = functional.elu((q.unsqueeze(1) @ weight_1).squeeze(1) + self.bias_1(s))
        total = (hidden * self.weight_2(s).abs()).sum(-1)
        return {"total": total + self.value(s).squeeze(-1)}


class TorchDuelingMixer(nn.Module):
    """Q_tot = sum_i V_i + sum_i lambda_i(s, a) A_i with lambda_i > 0 (Wang et al. 2021, equations 7 to 10).

    V_i and A_i are transformed by w_i(s) > 0 and b_i(s). lambda_i sums, over heads, k(s) f_i(s) g_i(s, a).
    """

    def __init__(self, agents: int, state: int, actions: int, heads: int, hyper_width: int) -> None:
        """`actions` is the number of features of the actions of all agents."""
        super().__init__()
        self.agents = agents
        self.weight = state_network(state, hyper_width, agents)
        self.bias = state_network(state, hyper_width, agents)
        self.keys = nn.Linear(state, heads)
        self.of_agents = state_network(state, hyper_width, heads * agents)
        self.of_actions = state_network(state + actions, hyper_width, heads * agents)

    def forward(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Values of the taken actions and of the best ones (B, N), which act, states and actions to totals (B,)."""
        s, acts = obs["state"], obs["acts"]
        weight = self.weight(s).abs() + SMALLEST
        q = weight * obs["values"] + self.bias(s)
        advantage = weight * (obs["values"] - obs["best"])
        share = self.advantage_weights(s, obs["actions"])
        # The gradient of advantages goes through q alone (appendix of the paper), which does not change the value.
        total = q + (share - 1) * advantage.detach()
        return {"total": (total * acts).sum(-1)}

    def advantage_weights(self, s: Tensor, actions: Tensor) -> Tensor:
        """The positive weight lambda of each agent's advantage (B, N)."""
        keys = self.keys(s).abs().unsqueeze(-1) + SMALLEST
        shape = (len(s), -1, self.agents)
        of_agents = self.of_agents(s).sigmoid().view(shape)
        of_actions = self.of_actions(torch.cat([s, actions], -1)).sigmoid().view(shape)
        return (keys * of_agents * of_actions).sum(1)
