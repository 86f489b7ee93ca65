"""Returns and losses equal those of torchrl and rlax on the same inputs (`make_references.py` stored them).

What neither library has is compared with its definition in the tests of the functions.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.nodes import losses, returns

STORED: dict[str, Any] = json.loads(Path(__file__).with_name("references.json").read_text())
CASES = {name: case for name, case in STORED.items() if name != "made_by"}
FOLDERS = (Path(__file__).parent, Path(__file__).parents[1] / "nodes")


def functions(module: Any) -> set[str]:
    members = inspect.getmembers(module, inspect.isfunction)
    return {name for name, function in members if function.__module__ == module.__name__}


def test_every_function_has_a_reference_or_a_test_of_its_own() -> None:
    tests = "".join(path.read_text() for folder in FOLDERS for path in folder.rglob("test_*.py"))
    names = functions(losses) | functions(returns)
    tested = {name for name in names if f"{name}(" in tests}
    assert names - {name.split()[0] for name in CASES} - tested == {"recursion"}  # a part of others


def of_returns(inputs: dict[str, Any]) -> dict[str, Any]:
    return {k: np.array(v) if isinstance(v, list) else v for k, v in inputs.items()}


def of_losses(inputs: dict[str, Any]) -> dict[str, Any]:
    return {k: torch.tensor(v) if isinstance(v, list) else v for k, v in inputs.items()}


@pytest.mark.parametrize("name", CASES)
def test_results_equal_the_reference(name: str) -> None:
    function = name.split()[0]
    inputs, expected = CASES[name]["inputs"], CASES[name]["expected"]
    if function in functions(returns):
        found = getattr(returns, function)(**of_returns(inputs))
    else:
        found = getattr(losses, function)(**of_losses(inputs))
    values = [found] if hasattr(found, "shape") else list(found)
    for value, wanted in zip(values, expected.values(), strict=False):
        valid = inputs.get("valid", True)
        rows = np.where(valid, np.asarray(value), 0).reshape(-1)
        np.testing.assert_allclose(rows, np.ravel(wanted), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", [name for name in CASES if "gradient" in CASES[name]["expected"]])
def test_gradients_equal_the_reference(name: str) -> None:
    inputs = of_losses(CASES[name]["inputs"])
    z = inputs["z"].requires_grad_()
    losses.quantile_huber(**inputs).sum().backward()
    np.testing.assert_allclose(z.grad, CASES[name]["expected"]["gradient"], rtol=2e-5, atol=2e-6)
