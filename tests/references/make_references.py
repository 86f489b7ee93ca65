"""Computes what torchrl and rlax return for random inputs, with which `test_references.py` compares.

    pip install torchrl rlax
    python tests/references/make_references.py

The file `references.json` holds inputs and results by function, so tests need neither library. A row's `discount` is 0
where its episode terminated, and `cut` says that the next row does not follow it.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
import rlax
import torch
from torchrl.modules import TanhNormal
from torchrl.objectives import IQLLoss, distance_loss
from torchrl.objectives.value import functional

FILE = Path(__file__).with_name("references.json")
ROWS, ACTIONS, GAMMA = 16, 3, 0.9
RNG = np.random.default_rng(0)

jax.config.update("jax_enable_x64", True)


def main() -> None:
    """Write the file."""
    made_by = {name: version(name) for name in ("torchrl", "rlax")}
    cases = {**returns_by_torchrl(), **returns_by_rlax(), **losses_by_torchrl(), **losses_by_rlax()}
    lines = [f"{json.dumps(name)}: {json.dumps(as_lists(case))}" for name, case in cases.items()]
    text = ",\n".join([f'"made_by": {json.dumps(made_by)}', *lines])
    FILE.write_text("{\n" + text + "\n}\n")


def case(expected: dict[str, Any], **inputs: Any) -> dict[str, Any]:
    return {"inputs": inputs, "expected": expected}


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).round(3)


def positive(*shape: int) -> Any:
    return np.exp(normal(*shape)).round(3)


def trajectories() -> dict[str, Any]:
    """Rows of three episodes: the first terminates, the second is truncated, and the third goes on."""
    cut, terminated = np.zeros(ROWS, bool), np.zeros(ROWS, bool)
    cut[[4, 9, ROWS - 1]] = terminated[4] = True
    v_t = normal(ROWS)
    v_tp1 = np.where(cut, normal(ROWS), np.roll(v_t, -1))
    discount_t = np.where(terminated, 0.0, GAMMA)
    return {"r_t": normal(ROWS), "discount_t": discount_t, "v_t": v_t, "v_tp1": v_tp1, "cut_t": cut}


def returns_by_torchrl() -> dict[str, Any]:
    c = trajectories()
    r, v, v_tp1 = (torch.tensor(c[name]).unsqueeze(-1) for name in ("r_t", "v_t", "v_tp1"))
    done = torch.tensor(c["cut_t"]).unsqueeze(-1)
    terminated = torch.tensor(c["discount_t"] == 0).unsqueeze(-1)
    ends = {"done": done, "terminated": terminated}
    ratio = positive(ROWS)
    log_ratio = torch.tensor(np.log(ratio)).unsqueeze(-1)
    advantage, _ = functional.generalized_advantage_estimate(GAMMA, 0.8, v, v_tp1, r, **ends)
    td = functional.td_lambda_return_estimate(GAMMA, 0.7, v_tp1, r, **ends)
    vtrace = functional.vtrace_advantage_estimate(
        GAMMA, log_ratio, 0 * log_ratio, v, v_tp1, r, **ends, rho_thresh=1.2, c_thresh=0.7
    )
    sums = functional.reward2go(r, done, GAMMA)
    no_v = {name: c[name] for name in ("r_t", "discount_t", "v_tp1", "cut_t")}
    limits = {"rho_limit": 1.2, "c_limit": 0.7}
    targets = {"target_t": vtrace[1], "advantage_t": vtrace[0]}
    return {
        "gae": case({"advantage_t": advantage}, **c, lambda_=0.8),
        "td_lambda": case({"return_t": td}, **no_v, lambda_=0.7),
        "vtrace": case(targets, ratio_t=ratio, **c, **limits),
        "discounted_returns": case({"return_t": sums}, r_t=c["r_t"], cut_t=c["cut_t"], gamma=GAMMA),
    }


def returns_by_rlax() -> dict[str, Any]:
    """Along rows that nothing cuts but their end; an episode terminates among them."""
    r, q, action = normal(ROWS), normal(ROWS, ACTIONS), RNG.integers(ACTIONS, size=ROWS)
    q_tp1, action_tp1 = np.roll(q, -1, 0), np.roll(action, -1)
    discount, cut = np.full(ROWS, GAMMA), np.zeros(ROWS, bool)
    discount[6], cut[-1] = 0.0, True
    pi = np.exp(q_tp1) / np.exp(q_tp1).sum(1, keepdims=True)
    mu = RNG.uniform(0.2, 0.9, ROWS).round(3)
    taken, pi_taken = q[np.arange(ROWS), action], pi[np.arange(ROWS), action_tp1]
    errors = rlax.retrace(q, q_tp1, action, action_tp1, r, discount, pi, mu, 0.9, 0.0)
    peng = rlax.q_lambda(q, action, r, discount, q_tp1, 0.6)
    nstep = rlax.n_step_bootstrapped_returns(r, np.full(ROWS, GAMMA), np.zeros(ROWS), 4)
    common = {"r_t": r, "discount_t": discount, "cut_t": cut}
    return {
        "retrace": case(
            {"return_t": taken + errors},
            **common,
            ratio_tp1=pi_taken / mu,
            q_t=taken,
            v_tp1=(pi * q_tp1).sum(1),
            lambda_=0.9,
        ),
        "q_lambda": case({"return_t": taken + peng}, **common, v_tp1=q_tp1.max(1), lambda_=0.6),
        "nstep_returns": case({"returns": nstep}, r_t=r, cut_t=cut, gamma=GAMMA, n=4),
    }


def losses_by_torchrl() -> dict[str, Any]:
    x, y, errors = normal(ROWS), normal(ROWS) * 2, normal(ROWS)
    tensors = torch.tensor(x), torch.tensor(y)
    mean, log_std, noise = normal(ROWS, 2), normal(ROWS, 2) - 1, normal(ROWS, 2)
    action = np.tanh(mean + np.exp(log_std) * noise)
    squashed = TanhNormal(torch.tensor(mean), torch.tensor(log_std).exp(), tanh_loc=False)
    logp = squashed.log_prob(torch.tensor(action))
    expectile = IQLLoss.loss_value_diff(torch.tensor(errors), 0.7)
    return {
        "error_loss huber": case(
            {"loss": distance_loss(*tensors, "smooth_l1")}, kind="huber", prediction=x, target=y
        ),
        "error_loss mse": case(
            {"loss": distance_loss(*tensors, "l2")}, kind="mse", prediction=x, target=y
        ),
        "expectile_loss": case({"loss": expectile}, error=errors, expectile=0.7),
        "squashed_gaussian": case(
            {"action": action, "logp": logp}, mean=mean, log_std=log_std, noise=noise
        ),
    }


def losses_by_rlax() -> dict[str, Any]:
    q_tp1, chooser = normal(ROWS, ACTIONS), normal(ROWS, ACTIONS)
    r, discount = normal(ROWS), np.where(np.arange(ROWS) % 5, GAMMA, 0.0)
    no_q, no_action = np.zeros((ROWS, ACTIONS)), np.zeros(ROWS, int)
    double = jax.vmap(rlax.double_q_learning)(no_q, no_action, r, discount, q_tp1, chooser)
    ratio, advantage = positive(ROWS), normal(ROWS)
    each = jax.vmap(lambda x, a: rlax.clipped_surrogate_pg_loss(x[None], a[None], 0.2))
    x = np.concatenate([normal(ROWS) * 10, [0.0, 1e-3, -200.0]])
    atoms, p = np.linspace(-2, 3, 6), RNG.dirichlet(np.ones(6), ROWS)
    shifted = r[:, None] + discount[:, None] * atoms
    project = jax.vmap(lambda z, p: rlax.categorical_l2_project(z, p, atoms))
    z, target, tau = normal(ROWS, 4), normal(ROWS, 5) * 2, RNG.random((ROWS, 4)).round(3)
    found = {
        "double_q_target": case(
            {"target_t": double}, r_t=r, discount_t=discount, q_tp1=q_tp1, chooser_tp1=chooser
        ),
        "clipped_policy_loss": case(
            {"loss": each(ratio, advantage)}, ratio=ratio, advantage=advantage, clip=0.2
        ),
        "rescale_value": case({"value": rlax.signed_hyperbolic(x)}, x=x),
        "restore_value": case({"value": rlax.signed_parabolic(x)}, x=x),
        "categorical_projection": case(
            {"p": project(shifted, p)}, atoms=atoms, p=p, r_t=r, discount_t=discount
        ),
        "nstep_targets": nstep_targets(),
    }
    for kappa in (1.0, 0.5):  # rlax does not divide by it

        def loss(z: Any, tau: Any, target: Any, kappa: float = kappa) -> Any:
            return rlax.quantile_regression_loss(z, tau, target, kappa) / kappa

        expected = {
            "loss": jax.vmap(loss)(z, tau, target),
            "gradient": jax.vmap(jax.grad(loss))(z, tau, target),
        }
        inputs = {"z": z, "target": target, "fractions": tau, "kappa": kappa}
        found[f"quantile_huber {kappa}"] = case(expected, **inputs)
    return found


def nstep_targets() -> dict[str, Any]:
    """Of two sequences, the second of which is shorter than its row."""
    reward, v, lengths = normal(2, 8), normal(2, 9), (8, 5)
    discount = np.full((2, 8), GAMMA)
    discount[0, 2] = 0.0
    target = np.zeros((2, 8))
    for w, n in enumerate(lengths):
        columns = reward[w, :n], discount[w, :n], v[w, 1 : n + 1]
        target[w, :n] = rlax.n_step_bootstrapped_returns(*columns, 3)
    valid = np.arange(8) < np.array(lengths)[:, None]
    inputs = {"reward": reward, "discount": discount, "valid": valid, "v": v, "steps": 3}
    return case({"target": target}, **inputs)


def as_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: as_lists(item) for name, item in value.items()}
    if isinstance(value, torch.Tensor):
        return as_lists(value.detach().numpy().reshape(-1))
    if isinstance(value, np.ndarray | jax.Array):
        array = np.asarray(value)
        return array.tolist() if array.dtype.kind == "b" else array.round(9).tolist()
    return value


if __name__ == "__main__":
    main()
