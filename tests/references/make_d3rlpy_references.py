"""Computes d3rlpy's conservative losses of given values, with which `test_imitation.py` compares.

    python -c "from bench.peers import D3RLPY as peer; print(peer.python())"   # makes a Python that has d3rlpy
    THAT_PYTHON tests/references/make_d3rlpy_references.py

The networks of CQL are replaced by stored values; what d3rlpy makes of them is its own. It leaves out the constant
log of the number of sampled actions.
"""

from __future__ import annotations

import json
import math
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from d3rlpy.algos.qlearning.torch.cql_impl import CQLImpl, DiscreteCQLImpl

FILE = Path(__file__).with_name("d3rlpy.json")
ROWS, SAMPLES, CRITICS, ACTIONS = 6, 4, 2, 3
RNG = np.random.default_rng(0)


def main() -> None:
    """Write the file."""
    cases = {"cql": cql_case(), "discrete_cql": discrete_case()}
    lines = [f'"made_by": {json.dumps({"d3rlpy": version("d3rlpy")})}']
    lines += [f"{json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def normal(*shape: int) -> torch.Tensor:
    return torch.tensor(RNG.standard_normal(shape).round(3))


def cql_case() -> dict[str, Any]:
    """Values of the actions of three kinds and their densities, by critic, row and sample."""
    kinds = [(normal(CRITICS, ROWS, SAMPLES), normal(1, ROWS, SAMPLES)) for _ in range(2)]
    uniform, density = normal(CRITICS, ROWS, SAMPLES), 2 * math.log(0.5)
    data = normal(CRITICS, ROWS, 1)
    drawn = iter(kinds)
    cql: Any = SimpleNamespace(
        _compute_policy_is_values=lambda **_: next(drawn),
        _compute_random_is_values=lambda _: (uniform, density),
        _q_func_forwarder=SimpleNamespace(compute_expected_q=lambda *_: data),
        _conservative_weight=1.0,
        _alpha_threshold=0.0,
    )
    nothing: Any = None
    gap = CQLImpl._compute_conservative_loss(cql, nothing, nothing, nothing, nothing)
    all_kinds = [*kinds, (uniform, torch.full((1, ROWS, SAMPLES), density))]
    return {
        "q": torch.cat([q for q, _ in all_kinds], 2).tolist(),
        "logp": torch.cat([logp for _, logp in all_kinds], 2)[0].tolist(),
        "q_of_data": data[..., 0].tolist(),
        "gap": gap.tolist(),
    }


def discrete_case() -> dict[str, Any]:
    q, action = normal(ROWS, ACTIONS), torch.tensor(RNG.integers(ACTIONS, size=ROWS))
    cql: Any = SimpleNamespace(
        _q_func_forwarder=SimpleNamespace(compute_expected_q=lambda _: q), action_size=ACTIONS
    )
    nothing: Any = None
    gap = DiscreteCQLImpl._compute_conservative_loss(cql, nothing, action)
    return {"q": q.tolist(), "action": action.tolist(), "gap": gap.item()}


if __name__ == "__main__":
    main()
