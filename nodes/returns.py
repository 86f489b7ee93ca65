"""Returns and advantages: pure functions of columns in time order.

Names follow rlax: `x_t` belongs to step t, `x_tp1` to the step after it, and `discount_t` is gamma,
or 0 where the episode terminated. `cut_t` says that row t + 1 does not follow row t: an episode
ended, or the rows of the next env begin. A cut ends a recursion; only a discount of 0 says that
nothing comes after.
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
    # all (N,); v_tp1 is the value of the observation that truly came next, also at a cut
    delta_t = r_t + discount_t * v_tp1 - v_t
    decay_t = np.where(cut_t, 0.0, lambda_ * discount_t)
    advantage, found = 0.0, []
    for delta, decay in zip(delta_t[::-1].tolist(), decay_t[::-1].tolist(), strict=True):
        advantage = delta + decay * advantage
        found.append(advantage)
    return np.array(found[::-1], np.float32)


def normalise(x: Array, eps: float = 1e-8) -> Array:
    """x with mean 0 and standard deviation 1."""
    return (x - x.mean()) / (x.std() + eps)


def bootstrap_discount(gamma: float, terminated: Array, steps: Array | int = 1) -> Array:
    """What the value of the next observation counts: gamma^steps, or 0 where terminated.

    Truncation does not enter: a state that was only cut off still has a value.
    """
    powers = gamma ** np.arange(int(np.max(steps, initial=0)) + 1)
    return (powers[steps] * ~terminated).astype(np.float32)


class NstepWindows(NamedTuple):
    """The windows of n rewards that begin at each step; shorter where the episode ends."""

    returns: Array  # (B, M) float32: the discounted sum of the window's rewards
    steps: Array  # (B, M) how many rewards those are
    last: Array  # (B, M) the window's last step, an index into the T steps


def nstep_returns(r_t: Array, done_t: Array, gamma: float, n: int) -> NstepWindows:
    """n-step returns (Sutton & Barto 2018, equation 7.1) without their bootstrap term.

    G_t = r_t + gamma r_{t+1} + … + gamma^(k-1) r_{t+k-1}
    with k = n, or as many steps as there are up to the end of the episode
    """
    # r_t, done_t: (B, T); M = T - n + 1 windows are whole
    whole = r_t.shape[1] - n + 1
    returns, steps = np.zeros((len(r_t), whole)), np.zeros((len(r_t), whole), np.int64)
    running = np.ones((len(r_t), whole), bool)
    for j in range(n):
        returns += gamma**j * running * r_t[:, j : j + whole]
        steps += running
        running &= ~done_t[:, j : j + whole]
    return NstepWindows(returns.astype(np.float32), steps, np.arange(whole) + steps - 1)
