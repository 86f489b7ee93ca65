"""Losses and targets of the algorithms: pure functions of tensors.

Names follow rlax: `x_t` belongs to step t, `x_tp1` to the step after it; `discount_t` is gamma, or 0 where the episode
terminated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from flowrl.nodes.devices import to_float
from flowrl.nodes.lazy import functional, torch
from flowrl.nodes.models.sampling import LOG_STD_LIMITS

if TYPE_CHECKING:
    from torch import Tensor


def chosen(values: Tensor, action: Tensor) -> Tensor:
    """x[…, action]: the values of the actions that were taken, (…, n) to (…)."""
    return values.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def chosen_each(values: Tensor, action: Tensor) -> Tensor:
    """The numbers of the actions that were taken, such as atoms: (B, n, k) to (B, k)."""
    index = action[..., None, None].expand(*action.shape, 1, values.shape[-1])
    return values.gather(-2, index).squeeze(-2)


def double_q_target(r_t: Tensor, discount_t: Tensor, q_tp1: Tensor, chooser_tp1: Tensor) -> Tensor:
    """r_t + discount_t Q(s_tp1, argmax_a chooser_tp1): van Hasselt et al. 2016, equation 4."""
    return r_t + discount_t * chosen(q_tp1, chooser_tp1.argmax(-1))


def error_loss(kind: str, prediction: Tensor, target: Tensor) -> Tensor:
    """`mse`: (x - y)^2; `huber`: half of it where |x - y| < 1, and |x - y| - 1/2 beyond."""
    loss = {"huber": functional.smooth_l1_loss, "mse": functional.mse_loss}[kind]
    found: Tensor = loss(prediction, target, reduction="none")
    return found


def clipped_policy_loss(
    ratio: Tensor, advantage: Tensor, clip: float, dual_clip: float | None = None
) -> Tensor:
    """-min(ratio A, clip(ratio, 1 - c, 1 + c) A): Schulman et al. 2017, equation 7.

    With `dual_clip`, the gain of a negative advantage is bounded: max(…, dual_clip A) (Ye et al. 2020, equation 5).
    """
    gain = torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    if dual_clip is not None:
        gain = torch.where(advantage < 0, torch.max(gain, dual_clip * advantage), gain)
    return -gain


def clipped_value_loss(value: Tensor, target: Tensor, old: Tensor, clip: float | None) -> Tensor:
    """(V - G)^2; with `clip`, max((V - G)^2, (V' - G)^2) with V' = V clipped to old +- clip."""
    loss = (value - target).square()
    if clip is not None:
        clipped = old + (value - old).clamp(-clip, clip)
        loss = torch.max(loss, (clipped - target).square())
    return loss


EPSILON = 1e-3  # the share of x in h(x), which keeps the inverse stable


def rescale_value(x: Tensor) -> Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x (Pohlen et al. 2018, proposition A.2).

    sqrt(|x| + 1) - 1 is computed as |x| / (sqrt(|x| + 1) + 1), which loses no digits where x is small.
    """
    return x / ((x.abs() + 1).sqrt() + 1) + EPSILON * x


def restore_value(x: Tensor) -> Tensor:
    """The inverse of h: sign(x) (u^2 - 1) with u = (sqrt(1 + 4 eps (|x| + 1 + eps)) - 1) / (2 eps).

    With y = |x| and d = u - 1, which solves eps d^2 + (1 + 2 eps) d = y, u^2 - 1 is d (d + 2). The root
    d = 2 y / (1 + 2 eps + sqrt((1 + 2 eps)^2 + 4 eps y)) loses no digits where x is small.
    """
    b = 1 + 2 * EPSILON
    d = 2 * x.abs() / (b + (b * b + 4 * EPSILON * x.abs()).sqrt())
    return x.sign() * d * (d + 2)


def nstep_targets(reward: Tensor, discount: Tensor, valid: Tensor, v: Tensor, steps: int) -> Tensor:
    """n-step targets within sequences; near the last valid step they sum fewer rewards.

    G_t = r_t + d_t (r_{t+1} + d_{t+1} (… + d v)), over up to `steps` rewards.
    """
    # reward, discount, valid: (W, T); v: (W, T + 1), because it includes the last next observation
    length = reward.shape[1]
    steps = min(steps, length)
    time = torch.arange(length, device=reward.device)
    target = v[:, (time + steps).clamp(max=length)]
    ends = valid.sum(1, keepdim=True)
    beyond_end = time + steps > ends  # the window passes the last valid step
    target = torch.where(beyond_end, v.gather(1, ends).expand_as(target), target)
    for ahead in range(steps - 1, -1, -1):
        kept = length - ahead
        summed = reward[:, ahead:] + discount[:, ahead:] * target[:, :kept]
        summed = torch.where(valid[:, ahead:], summed, target[:, :kept])
        target = torch.cat([summed, target[:, kept:]], 1)
    return target


def categorical_projection(atoms: Tensor, p: Tensor, r_t: Tensor, discount_t: Tensor) -> Tensor:
    """Project the distribution of r + discount Z onto the atoms: Bellemare et al. 2017, algorithm 1.

    Each shifted atom gives its probability to its two neighbours, in proportion to its nearness.
    """
    # atoms: (k,) in equal distances; p: (B, k)
    count, low, high = atoms.shape[0], atoms[0], atoms[-1]
    shifted = (r_t.unsqueeze(1) + discount_t.unsqueeze(1) * atoms).clamp(low, high)
    # From 0 to k - 1: a place that rounding makes larger would give a neighbour a negative probability.
    place = ((shifted - low) * ((count - 1) / (high - low))).clamp_(max=count - 1)
    lower = place.floor().clamp_(max=count - 2)
    to_upper = (place - lower) * p
    index = lower.long()
    index += torch.arange(0, p.numel(), count, device=p.device).unsqueeze(1)  # in the flat result
    found = torch.zeros_like(p)
    # Beside this function, those of torch that add at indices give other bits in each run on CUDA.
    found.view(-1).index_put_((index,), p - to_upper, accumulate=True)
    found.view(-1).index_put_((index + 1,), to_upper, accumulate=True)
    return found


def quantile_huber(z: Tensor, target: Tensor, fractions: Tensor, kappa: float = 1.0) -> Tensor:
    """sum_i mean_j |tau_i - 1{u_ij < 0}| huber(u_ij) / kappa with u_ij = target_j - z_i, for each row.

    Dabney et al. 2018a, equation 10. z: (B, N), target: (B, M), fractions: (N,) or (B, N). Only z gets a gradient.
    """
    # With c = clip(u, -kappa, kappa), huber(u) = c (u - c / 2) and its slope is c, which makes it
    # |tau - 1{u < 0}| c = (c + (2 tau - 1) |c|) / 2. Autograd would take ten times as long for the pairs.
    with torch.no_grad():
        u = target.unsqueeze(-2) - z.unsqueeze(-1)  # (B, N, M), which is changed in its place
        slope = u.clamp(-kappa, kappa)
        u.sub_(slope, alpha=0.5)
        slope.addcmul_(slope.abs(), (2 * fractions - 1).unsqueeze(-1))
        scale = 0.5 / (kappa * target.shape[-1])
        gradient = slope.sum(-1) * -scale
        loss = slope.mul_(u).sum((-2, -1)) * scale
    return with_gradient(loss, z, gradient)


def with_gradient(value: Tensor, x: Tensor, gradient: Tensor) -> Tensor:
    """The value (B,) with a gradient by x (B, N) that is known already."""
    return value + (gradient * (x - x.detach())).sum(-1)


def soft_value(q: Tensor, temperature: float) -> Tensor:
    """alpha log sum_a exp(Q(s, a) / alpha): Haarnoja et al. 2017, equation 3, for a few actions."""
    return temperature * torch.logsumexp(q / temperature, -1)


def squashed_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """a = tanh(mean + std noise) and log pi(a): Haarnoja et al. 2018a, appendix C; (B, n) to (B, n), (B,).

    log(1 - tanh(x)^2) is computed as 2 (log 2 - x - softplus(-2 x)), which is stable for large x.
    """
    log_std = log_std.clamp(*LOG_STD_LIMITS)
    x = mean + log_std.exp() * noise
    normal = -0.5 * (noise.square() + math.log(2 * math.pi)) - log_std
    change = 2 * (math.log(2) - x - functional.softplus(-2 * x))
    return x.tanh(), (normal - change).sum(-1)


def smoothed_action(action: Tensor, noise: Tensor, limit: float) -> Tensor:
    """clip(a + clip(noise, -c, c), -1, 1): Fujimoto et al. 2018, equation 14."""
    return (action + noise.clamp(-limit, limit)).clamp(-1, 1)


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], b: Tensor, iters: int, tolerance: float = 1e-10
) -> Tensor:
    """Solve A x = b, given x -> A x with a positive definite A (Hestenes & Stiefel 1952; n steps for n numbers)."""
    x, residual = torch.zeros_like(b), b.clone()
    direction, size = b.clone(), b @ b
    for _ in range(iters):
        if to_float(size) <= tolerance:
            break
        image = product(direction)
        step = size / (direction @ image)
        x = x + step * direction
        residual = residual - step * image
        size, last_size = residual @ residual, size
        direction = residual + size / last_size * direction
    return x


def natural_step(direction: Tensor, curvature: Tensor, limit: float) -> Tensor:
    """sqrt(2 limit / (x · A x)) x: the step whose divergence x · A x / 2 is the limit (TRPO, appendix C).

    `direction` is x = A^-1 g, and `curvature` is A x.
    """
    return (2 * limit / (direction @ curvature).clamp(min=1e-12)).sqrt() * direction


def bias_corrected_gradient(
    p_t: Tensor, behaviour_t: Tensor, action_t: Tensor, q_t: Tensor, return_t: Tensor, limit: float
) -> Tensor:
    """The gradient of the policy's gain by its logits, off-policy (ACER: Wang et al. 2017, equation 9).

    g = min(c, rho(a_t)) (G_t - V) dlog p(a_t) + sum_a max(0, 1 - c / rho(a)) p(a) (Q(a) - V) dlog p(a)
    with rho = p / behaviour, V = sum_a p(a) Q(a), and dlog p(a) = e_a - p by the logits
    """
    # p_t, behaviour_t, q_t: (…, n); action_t, return_t: (…)
    v_t = (p_t * q_t).sum(-1, keepdim=True)
    ratio = chosen(p_t, action_t) / chosen(behaviour_t, action_t)
    taken = functional.one_hot(action_t, p_t.shape[-1]) - p_t
    truncated = (ratio.clamp(max=limit) * (return_t - v_t.squeeze(-1))).unsqueeze(-1) * taken
    # max(0, 1 - c / rho) p = max(0, p - c behaviour), also where an action has no probability
    weighted = (p_t - limit * behaviour_t).clamp(min=0) * (q_t - v_t)
    return truncated + weighted - p_t * weighted.sum(-1, keepdim=True)


def limited_gradient(gradient: Tensor, constraint: Tensor, limit: float) -> Tensor:
    """The z nearest to g with k · z <= limit: g - max(0, (k · g - limit) / |k|^2) k (Wang et al. 2017, equation 12)."""
    excess = (constraint * gradient).sum(-1, keepdim=True) - limit
    squares = constraint.square().sum(-1, keepdim=True).clamp(min=1e-12)
    return gradient - (excess / squares).clamp(min=0) * constraint


def fraction_gradient(z_t: Tensor, z_mid: Tensor) -> Tensor:
    """dW / dtau_i = 2 Z(tau_i) - Z(mid_i) - Z(mid_{i-1}), of the inner fractions (Yang et al. 2019, proposition 1).

    W is the 1-Wasserstein distance of the quantile function to the N values at the midpoints between fractions.
    """
    # z_t: (B, N - 1), z_mid: (B, N)
    return 2 * z_t - z_mid[:, 1:] - z_mid[:, :-1]


def imitation_reward(form: str, logit: Tensor) -> Tensor:
    """`positive`: -log(1 - D), `negative`: log D, `signed`: log D - log(1 - D), with D = sigmoid(logit).

    `positive` is the reward of GAIL (Ho & Ermon 2016), `signed` that of AIRL (Fu et al. 2018).
    """
    if form == "signed":
        return logit
    return functional.softplus(logit) if form == "positive" else -functional.softplus(-logit)


def discriminator_loss(agent: Tensor, expert: Tensor) -> Tensor:
    """-E_expert log D - E_agent log(1 - D) with D = sigmoid(logit) (Ho & Ermon 2016, equation 17).

    The expert's steps are to have D = 1 here, and the agent's D = 0.
    """
    return functional.softplus(agent).mean() + functional.softplus(-expert).mean()


def ranking_loss(one: Tensor, other: Tensor, better: Tensor) -> Tensor:
    """-log p(the ranking) with p(one is better) = exp(one) / (exp(one) + exp(other)) (Brown et al. 2019, equation 2).

    `one` and `other` are the sums (B,) of the rewards of two clips, `better` is 1 where the first one is better.
    """
    return functional.binary_cross_entropy_with_logits(one - other, better)


def expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """|tau - 1{u < 0}| u^2 (Kostrikov et al. 2022, equation 4)."""
    weight = torch.where(error < 0, 1 - expectile, expectile)
    return weight * error.square()


def distillation_loss(logits: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """KL(softmax(scores / temperature) || softmax(logits)) of each row (B,) (Rusu et al. 2016, equation 3)."""
    teacher = (scores / temperature).log_softmax(-1)
    return (teacher.exp() * (teacher - logits.log_softmax(-1))).sum(-1)


def margin_loss(q: Tensor, action: Tensor, margin: float) -> Tensor:
    """max_a (Q(s, a) + margin 1{a != a_E}) - Q(s, a_E) (Hester et al. 2018, equation 3)."""
    other = 1 - functional.one_hot(action, q.shape[-1])
    return (q + margin * other).amax(-1) - chosen(q, action)


def conservative_gap(q: Tensor, action: Tensor) -> Tensor:
    """log sum_a exp Q(s, a) - Q(s, a_t), of the values (B, A) of all actions (Kumar et al. 2020, equation 4)."""
    return torch.logsumexp(q, -1) - chosen(q, action)


def sampled_soft_maximum(q: Tensor, logp: Tensor) -> Tensor:
    """log mean_k exp(Q(s, a_k)) / p(a_k), an estimate of log of the integral of exp(Q), of actions (…, K) drawn from p.

    Kumar et al. 2020, appendix F.
    """
    return torch.logsumexp(q - logp, -1) - math.log(q.shape[-1])
