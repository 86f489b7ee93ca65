"""Returns and advantages: pure functions of columns in time order.

Names follow rlax: `x_t` belongs to step t, `x_tp1` to the step after it, and `discount_t` is gamma, or 0 where the
episode terminated. `cut_t` says that row t + 1 does not follow row t, because the episode ended or the rows of the next
env begin. A cut ends a recursion. Only a discount of 0 says that the next state has no value.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flowrl.core.batch import Array


def recursion(delta_t: Array, decay_t: Array) -> Array:
    """x_t = delta_t + decay_t x_tp1, from the last row backwards.

    Every return and advantage here is such a recursion: at a cut its decay is 0. All arrays are (N,).
    """
    x = 0.0
    steps = zip(delta_t[::-1].tolist(), decay_t[::-1].tolist(), strict=True)
    found = [x := delta + decay * x for delta, decay in steps]
    return np.array(found[::-1], np.float32)


def gae(
    r_t: Array, discount_t: Array, v_t: Array, v_tp1: Array, cut_t: Array, lambda_: float
) -> Array:
    """Generalised advantage estimates (Schulman et al. 2016, equation 16).

    delta_t = r_t + discount_t v_tp1 - v_t
    A_t     = delta_t + discount_t lambda A_tp1, without the last term at a cut
    """
    # All arrays are (N,). At a cut, v_tp1 is the value of the episode's own next observation.
    delta_t = r_t + discount_t * v_tp1 - v_t
    return recursion(delta_t, np.where(cut_t, 0.0, lambda_ * discount_t))


def discounted_returns(r_t: Array, cut_t: Array, gamma: float) -> Array:
    """G_t = r_t + gamma G_tp1, without the last term at a cut."""
    return recursion(r_t, np.where(cut_t, 0.0, gamma))


def td_lambda(r_t: Array, discount_t: Array, v_tp1: Array, cut_t: Array, lambda_: float) -> Array:
    """TD(lambda) returns (Sutton & Barto 2018, section 12.1).

    G_t = r_t + discount_t ((1 - lambda) v_tp1 + lambda G_tp1), and r_t + discount_t v_tp1 at a cut
    """
    share = np.where(cut_t, 0.0, lambda_)
    return recursion(r_t + discount_t * (1 - share) * v_tp1, discount_t * share)


def q_lambda(r_t: Array, discount_t: Array, v_tp1: Array, cut_t: Array, lambda_: float) -> Array:
    """Peng's Q(lambda) (Peng & Williams 1996): TD(lambda) returns with v_tp1 = max_a Q(s_tp1, a)."""
    return td_lambda(r_t, discount_t, v_tp1, cut_t, lambda_)


def upgo(r_t: Array, discount_t: Array, v_tp1: Array, q_tp1: Array, cut_t: Array) -> Array:
    """Upgoing policy updates (Vinyals et al. 2019): returns that bootstrap where the next action disappoints.

    G_t = r_t + discount_t (G_tp1 if q_tp1 >= v_tp1 else v_tp1), and r_t + discount_t v_tp1 at a cut.
    `q_tp1` is r_tp1 + discount_tp1 v_tp2, the value of the action that was taken next.
    """
    return td_lambda(r_t, discount_t, v_tp1, cut_t | (q_tp1 < v_tp1), 1.0)


def retrace(
    ratio_tp1: Array,
    r_t: Array,
    discount_t: Array,
    q_t: Array,
    v_tp1: Array,
    cut_t: Array,
    *,
    lambda_: float = 1.0,
) -> Array:
    """Targets of Q(s_t, a_t) (Retrace: Munos et al. 2016, equation 4).

    delta_t = r_t + discount_t v_tp1 - q_t
    G_t     = q_t + delta_t + discount_t c_tp1 (G_tp1 - q_tp1), without the last term at a cut
    with c = lambda min(1, ratio), v_tp1 = E_pi Q(s_tp1, ·) and q_t = Q(s_t, a_t), so that q_tp1 is in the next row
    """
    delta_t = r_t + discount_t * v_tp1 - q_t
    c_tp1 = lambda_ * np.minimum(1.0, ratio_tp1)
    return q_t + recursion(delta_t, np.where(cut_t, 0.0, discount_t * c_tp1))


def vtrace(
    ratio_t: Array,
    r_t: Array,
    discount_t: Array,
    v_t: Array,
    v_tp1: Array,
    cut_t: Array,
    *,
    rho_limit: float = 1.0,
    c_limit: float = 1.0,
    lambda_: float = 1.0,
) -> tuple[Array, Array]:
    """V-trace: targets of the value (Espeholt et al. 2018, equation 1), and advantages (section 4.2).

    rho_t   = min(rho_limit, ratio_t) and c_t = lambda min(c_limit, ratio_t)
    delta_t = rho_t (r_t + discount_t v_tp1 - v_t)
    G_t     = v_t + delta_t + discount_t c_t (G_tp1 - v_tp1), without the last term at a cut
    A_t     = rho_t (r_t + discount_t G_tp1 - v_t), with v_tp1 in the place of G_tp1 at a cut
    """
    rho_t, c_t = np.minimum(rho_limit, ratio_t), lambda_ * np.minimum(c_limit, ratio_t)
    delta_t = rho_t * (r_t + discount_t * v_tp1 - v_t)
    target_t = v_t + recursion(delta_t, np.where(cut_t, 0.0, discount_t * c_t))
    target_tp1 = np.where(cut_t, v_tp1, np.roll(target_t, -1))
    advantage_t = rho_t * (r_t + discount_t * target_tp1 - v_t)
    return target_t.astype(np.float32), advantage_t.astype(np.float32)


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
    """The window of up to n rewards that begins at each row. A window ends at a cut."""

    returns: Array  # (N,) float32: the discounted sum of the window's rewards
    steps: Array  # (N,) the number of rewards in the window
    last: Array  # (N,) the window's last row


def nstep_returns(r_t: Array, cut_t: Array, gamma: float, n: int) -> NstepWindows:
    """Compute n-step returns (Sutton & Barto 2018, equation 7.1) without their bootstrap term.

    G_t = r_t + gamma r_{t+1} + … + gamma^(k-1) r_{t+k-1}
    with k = n, or the number of rows up to the next cut if it is smaller; the final row is a cut
    """
    # r_t, cut_t: (N,)
    rows = len(r_t)
    returns, steps = r_t.astype(np.float64), np.ones(rows, np.int64)
    reaches = np.ones(rows, bool)  # whether the window of row t reaches row t + j
    for j in range(1, min(n, rows)):
        reaches = reaches[:-1] & ~cut_t[j - 1 : -1]
        returns[:-j] += gamma**j * reaches * r_t[j:]
        steps[:-j] += reaches
    return NstepWindows(returns.astype(np.float32), steps, np.arange(rows) + steps - 1)
