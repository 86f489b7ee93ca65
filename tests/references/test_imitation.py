"""Losses of imitation and of conservatism equal those of imitation and d3rlpy (`make_*_references.py` stored them)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flowrl.nodes import losses
from flowrl.nodes.reward_steps import StepBatch
from flowrl.nodes.rewards.airl import Airl

FOLDER = Path(__file__).parent
IMITATION = json.loads((FOLDER / "imitation.json").read_text())
D3RLPY = json.loads((FOLDER / "d3rlpy.json").read_text())


def test_the_loss_and_the_reward_of_gail() -> None:
    """imitation's loss is the mean over both batches together, so half of the sum of their means."""
    case = IMITATION["gail"]
    agent, expert = torch.tensor(case["agent"]), torch.tensor(case["expert"])
    assert losses.discriminator_loss(agent, expert).item() == pytest.approx(2 * case["loss"])
    reward = losses.imitation_reward("positive", agent)
    np.testing.assert_allclose(reward, case["reward"], rtol=1e-5)


def airl_logit(steps: dict[str, Any], gamma: float) -> Tensor:
    """The logit of the node `airl`, whose networks give these values."""
    columns = {n: torch.tensor(values) for n, values in steps.items()}
    h = {"now": columns["h_t"], "next": columns["h_tp1"]}
    node: Any = SimpleNamespace(
        reward_network=Answers(lambda _: columns["g_t"]),
        shaping_network=Answers(lambda obs: h[obs]),
    )
    b = StepBatch(
        {
            "obs": "now",
            "next_obs": "next",
            "discount": gamma * (1 - columns["done"].float()),
            "logp": columns["logp"],
        }
    )
    return Airl.logit(node, b)


class Answers:
    """A network of observations that gives stored values."""

    inputs = ("obs",)

    def __init__(self, values: Any) -> None:
        self.values = values

    def __call__(self, obs: Any) -> dict[str, Tensor]:
        return {"value": self.values(obs)}


def test_the_logit_and_the_loss_of_airl() -> None:
    case = IMITATION["airl"]
    logits = {name: airl_logit(case[name], case["gamma"]) for name in ("agent", "expert")}
    for name, logit in logits.items():
        np.testing.assert_allclose(logit, case[name]["logit"], rtol=1e-4, atol=1e-5)
    loss = losses.discriminator_loss(logits["agent"], logits["expert"])
    assert loss.item() == pytest.approx(2 * case["loss"], rel=1e-5)


def test_the_gap_of_cql_with_real_valued_actions() -> None:
    """d3rlpy leaves out the constant log of the number of actions."""
    case = D3RLPY["cql"]
    q, logp, q_of_data = (torch.tensor(case[n]) for n in ("q", "logp", "q_of_data"))
    soft_maximum = losses.sampled_soft_maximum(q, logp)
    gap = (soft_maximum + math.log(q.shape[-1]) - q_of_data).mean(1)
    np.testing.assert_allclose(gap, case["gap"], rtol=1e-5)


def test_the_gap_of_cql_with_a_few_actions() -> None:
    case = D3RLPY["discrete_cql"]
    q, action = torch.tensor(case["q"]), torch.tensor(case["action"])
    gap = losses.conservative_gap(q, action).mean()
    assert gap.item() == pytest.approx(case["gap"], rel=1e-5)
