"""Slow, plain definitions of what is particular to several agents, written from the papers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowrl.core.batch import Array


def counterfactual_advantage(
    q: Array, p_of_agent: Array, joint: Sequence[int], agent: int
) -> float:
    """Foerster et al. 2018, equation 4, by a table of Q of joint actions (n_1, …, n_N)."""
    baseline = 0.0
    for instead in range(len(p_of_agent)):
        other = list(joint)
        other[agent] = instead
        baseline += p_of_agent[instead] * q[tuple(other)]
    return float(q[tuple(joint)] - baseline)


def product_of_ratios(ratios: Array, agents: Sequence[int]) -> Array:
    """The compound ratio of these agents for each row: Kuba et al. 2022, equation 11."""
    found = np.ones(len(ratios))
    for row in range(len(ratios)):
        for agent in agents:
            found[row] *= ratios[row, agent]
    return found


def gae_of_agent(
    r: Array, gamma: float, v: Array, v_tp1: Array, ends: Array, lambda_: float, alive: Array
) -> Array:
    """Advantages of one agent by its own rewards, as sums of the TD errors of the steps of one life.

    `ends` is 1 where the env's row is not followed by the next (2: where it also terminates), `alive` (T + 1,) says
    when the agent acts. A life that ends before its episode terminates: nothing follows it.
    """
    found = np.zeros(len(r))
    for t in range(len(r)):
        factor = 1.0
        for k in range(t, len(r)):
            if not alive[k]:
                break
            dies = ends[k] == 2 or (ends[k] == 0 and not alive[k + 1])
            found[t] += factor * (r[k] + (0 if dies else gamma * v_tp1[k]) - v[k])
            if dies or ends[k]:
                break
            factor *= gamma * lambda_
    return found


def td_lambda_of_agent(
    r: Array, gamma: float, q: Array, terminates_at: int, lambda_: float
) -> Array:
    """Foerster et al. 2018, section 2: (1 - lambda) sum_n lambda^(n-1) G^(n), in one episode that terminates.

    `q[t]` is the value of what agents did in step t.
    """
    found, last = np.zeros(len(r)), terminates_at
    for t in range(last + 1):
        steps = last + 1 - t  # until the end, behind which there is no value
        for n in range(1, steps + 1):
            g = sum(gamma**k * r[t + k] for k in range(n))
            if t + n <= last:
                g += gamma**n * q[t + n]
            weight = (1 - lambda_) * lambda_ ** (n - 1) if n < steps else lambda_ ** (n - 1)
            found[t] += weight * g
    return found
