"""Returns and advantages: pure functions of columns in time order.

Names follow rlax: `x_t` belongs to step t, `x_tp1` to the step after it, and `discount_t` is gamma, or 0 where the
episode terminated. `cut_t` says that row t + 1 does not follow row t: an episode ended, or the rows of the next
environment begin. A cut ends a recursion; only a discount of 0 says that nothing comes after.
"""

from __future__ import annotations

import numpy as np

from flowrl.batch import Array


def gae(r_t: Array, discount_t: Array, v_t: Array, v_tp1: Array, cut_t: Array, lambda_: float) -> Array:
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
