"""Slow, plain definitions of the mathematics of value decomposition, for one state and in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Weights = Mapping[str, Any]


def linear(weights: Weights, name: str, x: Any) -> Any:
    return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]


def state_network(weights: Weights, name: str, x: Any) -> Any:
    """A network with one hidden layer, as torch names its parameters."""
    return linear(weights, f"{name}.2", np.maximum(linear(weights, f"{name}.0", x), 0))


def qmix(weights: Weights, values: Any, state: Any) -> float:
    """Rashid et al. 2018, figure 2: elu(|W_1| q + b_1) weighted by |w_2|, plus v; all of them depend on the state."""
    bias = linear(weights, "bias_1", state)
    first = np.abs(state_network(weights, "weight_1", state)).reshape(len(values), len(bias))
    hidden = [
        sum(first[agent, unit] * values[agent] for agent in range(len(values))) + bias[unit]
        for unit in range(len(bias))
    ]
    active = [h if h > 0 else np.exp(h) - 1 for h in hidden]
    second = np.abs(state_network(weights, "weight_2", state))
    mixed = sum(w * h for w, h in zip(second, active, strict=True))
    return float(mixed + state_network(weights, "value", state)[0])


def qplex(weights: Weights, q: Any, action: Any, alive: Any, state: Any) -> float:
    """Wang et al. 2021, equations 7 to 10: sum_i V_i + sum_i lambda_i A_i over the agents that act."""
    agents, actions = q.shape
    hot = np.zeros((agents, actions))
    for agent in range(agents):
        hot[agent, action[agent]] = alive[agent]
    both = np.concatenate([state, hot.reshape(-1)])
    w = np.abs(state_network(weights, "weight", state)) + 1e-10
    b = state_network(weights, "bias", state)
    keys = np.abs(linear(weights, "keys", state)) + 1e-10
    of_agents = sigmoid(state_network(weights, "of_agents", state)).reshape(len(keys), agents)
    of_actions = sigmoid(state_network(weights, "of_actions", both)).reshape(len(keys), agents)
    total = 0.0
    for agent in range(agents):
        if not alive[agent]:
            continue
        best = max(q[agent])
        value = w[agent] * best + b[agent]
        advantage = w[agent] * (q[agent, action[agent]] - best)
        share = sum(keys[k] * of_agents[k, agent] * of_actions[k, agent] for k in range(len(keys)))
        total += value + share * advantage
    return float(total)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def wqmix_weight(
    kind: str, alpha: float, total: float, target: float, best_central: float, is_best: bool
) -> float:
    """Rashid et al. 2020, equation 8 (optimistic) and 7 (central)."""
    if kind == "optimistic":
        return 1.0 if total < target else alpha
    return 1.0 if target > best_central or is_best else alpha


def td_lambda_target(
    rewards: Any, discounts: Any, v_tp1: Any, cuts: Any, lambda_: float, t: int
) -> float:
    """(1 - lambda) sum_n lambda^(n-1) G^(n), where the longest return, up to the cut, has all of the remaining weight.

    G^(n) = r_t + d_t (r_{t+1} + … + d_{t+n-1} v_{t+n})
    """
    end = next(k for k in range(t, len(rewards)) if cuts[k] or k == len(rewards) - 1)
    longest = end - t + 1
    found = 0.0
    for n in range(1, longest + 1):
        g = v_tp1[t + n - 1]
        for k in range(t + n - 1, t - 1, -1):
            g = rewards[k] + discounts[k] * g
        weight = lambda_ ** (longest - 1) if n == longest else (1 - lambda_) * lambda_ ** (n - 1)
        found += weight * g
    return found
