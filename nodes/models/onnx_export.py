"""Exports what a policy does when it acts greedily as an ONNX file, which programs without flowrl can run.

The file has the network with its weights, the encoding of observations, and the steps from heads to actions.
"""

from __future__ import annotations

import importlib.util
import inspect
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

from flowrl.core.batch import Column
from flowrl.core.errors import UsageError
from flowrl.core.state import State
from flowrl.nodes.acting import ActingStep
from flowrl.nodes.algorithm import Algorithm
from flowrl.nodes.lazy import tensor
from flowrl.nodes.models.model import TorchInference
from flowrl.nodes.observations import NestedColumns, leaf_columns
from flowrl.nodes.policy import Policy

ROWS = "rows"  # the name of the dimension of a batch


class ActingModule(nn.Module):
    """Maps observations (B, …), or their leaves, to actions (B, …), as the eval mode of an algorithm does."""

    def __init__(self, policy: Algorithm, steps: Sequence[Any], weights: State) -> None:
        super().__init__()
        net, heads = policy.nets[policy.acting_network], policy.acting_heads()
        wanted = {name: net.heads[name] for name in heads}
        acting = TorchInference(net.model.build(net.inputs["obs"], wanted, seed=0), wanted, heads)
        acting.load(weights.arrays)
        self.network, self.arguments = acting.module, acting.arguments
        self.steps, self.box, self.action = steps, policy.box, policy.action
        self.leaves = list(leaf_columns(policy.obs)) if is_nested(policy) else None
        self.dtype = tensor(np.zeros(1, policy.action.dtype)).dtype

    def forward(self, *inputs: Tensor) -> Tensor:
        obs: Any = inputs[0] if self.leaves is None else dict(zip(self.leaves, inputs, strict=True))
        columns = dict(self.network(obs, **self.arguments))
        for step in self.steps:
            step(columns, obs)
        action: Tensor = columns["action"]
        if self.box is not None:
            action = action * torch.from_numpy(self.box.half) + torch.from_numpy(self.box.middle)
        return action.reshape(-1, *self.action.shape).to(self.dtype)


def export_onnx(policy: Policy, weights: State | None, path: Path) -> Path:
    """Write the file, or say why the policy has none."""
    name = type(policy).__name__
    if not isinstance(policy, Algorithm) or weights is None:
        raise UsageError(
            f"{name} cannot be exported: it has no network with weights; expected an algorithm that was trained"
        )
    if policy.memory_columns():
        raise UsageError(
            f"{name} cannot be exported: its model is recurrent, and an ONNX file keeps no memory between steps; "
            "expected a policy that acts by each observation alone"
        )
    if policy.own_obs is not policy.obs:
        raise UsageError(
            f"{name} cannot be exported: it acts for several agents; expected a policy that acts for one"
        )
    module = ActingModule(policy, [in_torch(step, name) for step in policy.eval_chain()], weights)
    if importlib.util.find_spec("onnx") is None:
        raise UsageError(
            "exporting needs the package 'onnx', which is not installed; pip install 'flowrl[onnx]'"
        )
    columns = leaf_columns(policy.obs)
    names = list(columns) if is_nested(policy) else ["obs"]
    write(module.eval(), names, list(columns.values()), path)
    return path


def is_nested(policy: Policy) -> bool:
    return isinstance(policy.obs, NestedColumns)


def in_torch(step: ActingStep, owner: str) -> Any:
    """What a step does in torch."""
    found = getattr(step, "in_torch", None)
    if found is None:
        name = getattr(step, "__qualname__", type(step).__name__).partition(".")[0]
        raise UsageError(
            f"{owner} cannot be exported: its evaluations act by the step `{name}`, which has no form in torch; leave "
            "out `eval_draws` if that is why, or make a step of your own with `flowrl.nodes.acting.exportable`"
        )
    return found


def write(module: nn.Module, names: Sequence[str], columns: Sequence[Column], path: Path) -> None:
    """Trace the module with two rows, and write it; the number of rows stays open."""
    examples = tuple(tensor(np.zeros((2, *column.shape), column.dtype)) for column in columns)
    options: dict[str, Any] = {"dynamic_axes": {name: {0: ROWS} for name in (*names, "action")}}
    if "dynamo" in inspect.signature(torch.onnx.export).parameters:
        options["dynamo"] = False  # the other exporter needs onnxscript, and takes seconds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", TracerWarning)  # arrays become constants
        torch.onnx.export(
            module,
            examples,
            str(path),
            input_names=list(names),
            output_names=["action"],
            **options,
        )
