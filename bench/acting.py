"""What choosing actions costs a call: as flowrl does it, and as torch would in other ways.

    python -m bench acting [--quick] [--model NAME ...]

From observations as env managers give them (numpy) to the heads that a policy reads (numpy), in one
thread, for several numbers of envs. Ways take turns; told is the median, in microseconds.

    numpy        weights as arrays, no torch (mlp, gru)
    eager        the torch module as it learns, with gradients
    no_grad, inference_mode
    jit          traced, frozen and optimised for inference
    compile      torch.compile, where there is a C++ compiler
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from flowrl.core.batch import Array, Column
from flowrl.machine.numerics import reset_numerics
from flowrl.nodes.models.cnn import Cnn
from flowrl.nodes.models.gru import MEMORY, Gru
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.model import DuelingHead, Heads, LinearHead, Model, TorchInference

VECTOR, IMAGE = Column("float32", (8,)), Column("uint8", (4, 84, 84))
HEADS: Heads = {"policy": LinearHead(4), "value": LinearHead(1)}
MODELS: Mapping[str, tuple[Model, Column, Heads]] = {
    "mlp 64, 64": (Mlp(hidden=[64, 64], activation="tanh"), VECTOR, HEADS),
    "mlp 128, 128, 64": (Mlp(), VECTOR, {"q": DuelingHead(4)}),
    "mlp 512, 512": (Mlp(hidden=[512, 512]), VECTOR, HEADS),
    "gru 64": (Gru(), VECTOR, HEADS),
    "cnn": (Cnn(), IMAGE, HEADS),
}
ENVS = (1, 8, 64)
REPEATS, SECONDS = 7, 0.2  # of each way and number of envs
Call = Callable[[], Any]


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser("python -m bench acting", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="shorter, without torch.compile")
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    told = parser.parse_args(arguments)
    reset_numerics(1)
    repeats, seconds = (3, 0.02) if told.quick else (REPEATS, SECONDS)
    found = {}
    for name in told.model:
        for envs in ENVS:
            calls = ways(*MODELS[name], envs, compiled=not told.quick)
            found[f"{name}, {envs} envs"] = measured(calls, repeats, seconds)
            print(table({f"{name}, {envs} envs": found[f"{name}, {envs} envs"]}), flush=True)
    print("\n" + table(found))
    return {"us": found, "table": table(found)}


def ways(model: Model, column: Column, heads: Heads, envs: int, compiled: bool) -> dict[str, Call]:
    """The same forward, in every way there is; all are checked to give the same."""
    module = model.build(column, heads, 0).eval()
    arrays = {
        n: t.detach().numpy() for n, t in [*module.named_parameters(), *module.named_buffers()]
    }
    inference_model = model.inference_model(column, heads, tuple(heads))
    obs = _observed(column, envs)
    memory = {n: np.zeros((envs, *c.shape), c.dtype) for n, c in model.memory_columns().items()}
    given = (memory,) if memory else ()
    acts_in_torch = isinstance(inference_model, TorchInference)
    calls: dict[str, Call] = {}
    if not acts_in_torch:
        inference_model.load(arrays)
        calls["numpy"] = lambda: inference_model(obs, *given)

    def inputs() -> tuple[Any, ...]:
        if not memory:
            return (torch.from_numpy(obs),)
        begins = torch.zeros((envs, 1), dtype=torch.bool)
        return torch.from_numpy(obs), torch.from_numpy(memory[MEMORY]), begins

    def under(mode: Callable[[], Any], forward: Callable[..., Any]) -> Call:
        def call() -> dict[str, Array]:
            with mode():
                out = forward(*inputs())
            return {name: out[name].detach().numpy() for name in heads}

        return call

    calls["eager"] = under(torch.enable_grad, module)
    calls["no_grad"] = under(torch.no_grad, module)
    calls["inference_mode"] = under(torch.inference_mode, module)
    with torch.no_grad():
        traced = torch.jit.trace(module, inputs(), strict=False)
        calls["jit"] = under(torch.no_grad, torch.jit.optimize_for_inference(traced))
    if compiled:
        calls["compile"] = under(torch.no_grad, torch.compile(module))
    _demand_same(calls)
    return calls


def _observed(column: Column, envs: int) -> Array:
    rng = np.random.default_rng(0)
    if column.dtype == "uint8":
        return rng.integers(256, size=(envs, *column.shape), dtype=np.uint8)
    return rng.standard_normal((envs, *column.shape)).astype(column.dtype)


def _demand_same(calls: Mapping[str, Call]) -> None:
    first, *others = calls
    expected = calls[first]()
    for name in others:
        found = calls[name]()
        for head in expected.keys() & found.keys():
            np.testing.assert_allclose(found[head], expected[head], rtol=1e-3, atol=1e-4)


def measured(calls: Mapping[str, Call], repeats: int, seconds: float) -> dict[str, float]:
    """Microseconds a call: the median of the repeats, for which all take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(20):
            call()
    for _ in range(repeats):
        for name, call in calls.items():
            times[name].append(_us(call, seconds))
    return {name: statistics.median(found) for name, found in times.items()}


def _us(call: Call, seconds: float) -> float:
    begun, n = time.perf_counter(), 0
    while (taken := time.perf_counter() - begun) < seconds:
        for _ in range(10):
            call()
        n += 10
    return 1e6 * taken / n


def table(found: Mapping[str, Mapping[str, float]]) -> str:
    """A row for each model and number of envs, in Markdown."""
    names = list(dict.fromkeys(name for row in found.values() for name in row))
    lines = [f"| µs a call | {' | '.join(names)} |", "|" + "---|" * (len(names) + 1)]
    for what, row in found.items():
        shown = [f"{row[name]:.0f}" if name in row else "" for name in names]
        lines.append(f"| {what} | {' | '.join(shown)} |")
    return "\n".join(lines)
