"""Returns and advantages: pure functions of columns in time order.

Names follow rlax: `x_t` belongs to step t, `x_tp1` to the step after it, and `discount_t` is gamma, or 0 where the
episode terminated. `cut_t` says that row t + 1 does not follow row t, because the episode ended or the rows of the next
env begin. A cut ends a recursion. Only a discount of 0 says that the next state has no value.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flowrl.core.batch import Array


def gae(
    r_t: Array, discount_t: Array, v_t: Array, v_tp1: Array, cut_t: Array, lambda_: float
) -> Array:
    """Generalised advantage estimates (Schulman et al. 2016, equation 16).

    delta_t = r_t + discount_t v_tp1 - v_t
    A_t     = delta_t + discount_t lambda A_tp1, without the last term at a cut
    """
    # All arrays are (N,). At a cut, v_tp1 is the value of the episode's own next observation.
    delta_t = r_t + discount_t * v_tp1 - v_t
    decay_t = np.where(cut_t, 0.0, lambda_ * discount_t)
    advantage, found = 0.0, []
    for delta, decay in zip(delta_t[::-1].tolist(), decay_t[::-1].tolist(), strict=True):
        advantage = delta + decay * advantage
        found.append(advantage)
    return np.array(found[::-1], np.float32)


def normalise(x: Array, eps: float = 1e-8) -> Array:
    """Shift and scale x to mean 0 and standard deviation 1."""
    return (x - x.mean()) / (x.std() + eps)


def bootstrap_discount(gamma: float, terminated: Array, steps: Array | int = 1) -> Array:
    """Return the discount of the value of the next observation: gamma^steps, or 0 where the episode terminated.

    Truncation does not matter: the state at which an episode is truncated still has a value.
    """
    powers = gamma ** np.arange(int(np.max(steps, initial=0)) + 1)
    return (powers[steps] * ~terminated).astype(np.float32)


class NstepWindows(NamedTuple):
    """The windows of n rewards that begin at each step. A window ends with its episode."""

    returns: Array  # (B, M) float32: the discounted sum of the window's rewards
    steps: Array  # (B, M) the number of rewards in the window
    last: Array  # (B, M) the window's last step, an index into the T steps


def nstep_returns(r_t: Array, done_t: Array, gamma: float, n: int) -> NstepWindows:
    """Compute n-step returns (Sutton & Barto 2018, equation 7.1) without their bootstrap term.

    G_t = r_t + gamma r_{t+1} + … + gamma^(k-1) r_{t+k-1}
    with k = n, or the number of steps up to the end of the episode if it is smaller
    """
    # r_t, done_t: (B, T)
    windows = r_t.shape[1] - n + 1  # M
    returns, steps = np.zeros((len(r_t), windows)), np.zeros((len(r_t), windows), np.int64)
    running = np.ones((len(r_t), windows), bool)
    for j in range(n):
        returns += gamma**j * running * r_t[:, j : j + windows]
        steps += running
        running &= ~done_t[:, j : j + windows]
    return NstepWindows(returns.astype(np.float32), steps, np.arange(windows) + steps - 1)
