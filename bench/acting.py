"""The cost of choosing actions: as flowrl does it, and with other ways to run torch.

    python -m bench acting [--quick] [--model NAME ...]

A call maps an env manager's observations (numpy) to the heads that a policy reads (numpy), in one thread,
for several numbers of envs. The ways take turns; the result is the median, in microseconds per call.

    numpy        weights are arrays, without torch (mlp, gru)
    eager        the torch module as in learning, with gradients
    no_grad, inference_mode
    jit          traced, frozen and optimised for inference
    compile      torch.compile, where there is a C++ compiler
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from bench._arguments import benchmark_parser
from flowrl.core.batch import Array, Column
from flowrl.machine.numerics import reset_numerics
from flowrl.nodes.models.cnn import Cnn
from flowrl.nodes.models.heads import DuelingHead, Heads, LinearHead
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.model import Model, TorchInference
from flowrl.nodes.models.recurrent import Gru

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
REPEATS, SECONDS = 7, 0.2  # for each way and number of envs
Call = Callable[[], Any]


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, and print the results."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument("--quick", action="store_true", help="shorter, without torch.compile")
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args(arguments)
    reset_numerics(1)
    repeats, seconds = (3, 0.02) if options.quick else (REPEATS, SECONDS)
    results = {}
    for name in options.model:
        for envs in ENVS:
            calls = forward_calls(*MODELS[name], envs, compiled=not options.quick)
            cell = f"{name}, {envs} envs"
            results[cell] = measure(calls, repeats, seconds)
            print(table({cell: results[cell]}), flush=True)
    print("\n" + table(results))
    return {"us": results, "table": table(results)}


def forward_calls(
    model: Model, column: Column, heads: Heads, envs: int, compiled: bool
) -> dict[str, Call]:
    """The model's forward call in every way; raise if two ways differ in their results."""
    module = model.build(column, heads, 0).eval()
    arrays = {
        n: t.detach().numpy() for n, t in [*module.named_parameters(), *module.named_buffers()]
    }
    inference_model = model.inference_model(column, heads, tuple(heads))
    obs = _random_obs(column, envs)
    memory = [np.zeros((envs, *c.shape), c.dtype) for c in model.memory_columns().values()]
    calls: dict[str, Call] = {}
    if not isinstance(inference_model, TorchInference):
        inference_model.load(arrays)
        calls["numpy"] = lambda: inference_model(obs, *memory)

    def inputs() -> tuple[Any, ...]:
        if not memory:
            return (torch.from_numpy(obs),)
        begins = torch.zeros((envs, 1), dtype=torch.bool)
        return torch.from_numpy(obs), torch.from_numpy(memory[0]), begins

    def call_under(mode: Callable[[], Any], forward: Callable[..., Any]) -> Call:
        def call() -> dict[str, Array]:
            with mode():
                output = forward(*inputs())
            return {name: output[name].detach().numpy() for name in heads}

        return call

    calls["eager"] = call_under(torch.enable_grad, module)
    calls["no_grad"] = call_under(torch.no_grad, module)
    calls["inference_mode"] = call_under(torch.inference_mode, module)
    with torch.no_grad():
        traced = torch.jit.trace(module, inputs(), strict=False)
        calls["jit"] = call_under(torch.no_grad, torch.jit.optimize_for_inference(traced))
    if compiled:
        calls["compile"] = call_under(torch.no_grad, torch.compile(module))
    check_results_equal(calls)
    return calls


def _random_obs(column: Column, envs: int) -> Array:
    rng = np.random.default_rng(0)
    if column.dtype == "uint8":
        return rng.integers(256, size=(envs, *column.shape), dtype=np.uint8)
    return rng.standard_normal((envs, *column.shape)).astype(column.dtype)


def check_results_equal(calls: Mapping[str, Call]) -> None:
    """Raise unless all calls return the same heads, up to rounding."""
    first, *others = calls
    expected = calls[first]()
    for name in others:
        actual = calls[name]()
        for head in expected.keys() & actual.keys():
            np.testing.assert_allclose(actual[head], expected[head], rtol=1e-3, atol=1e-4)


def measure(calls: Mapping[str, Call], repeats: int, seconds: float) -> dict[str, float]:
    """The microseconds per call, as the median of repeats in which all ways take turns."""
    times_us: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(20):
            call()
    for _ in range(repeats):
        for name, call in calls.items():
            times_us[name].append(_call_time_us(call, seconds))
    return {name: statistics.median(values) for name, values in times_us.items()}


def _call_time_us(call: Call, seconds: float) -> float:
    start_s, calls = time.perf_counter(), 0
    while (duration_s := time.perf_counter() - start_s) < seconds:
        for _ in range(10):
            call()
        calls += 10
    return 1e6 * duration_s / calls


def table(results: Mapping[str, Mapping[str, float]]) -> str:
    """A row for each model and number of envs, in Markdown."""
    names = list(dict.fromkeys(name for row in results.values() for name in row))
    lines = [f"| µs per call | {' | '.join(names)} |", "|" + "---|" * (len(names) + 1)]
    for cell, row in results.items():
        times_us = [f"{row[name]:.0f}" if name in row else "" for name in names]
        lines.append(f"| {cell} | {' | '.join(times_us)} |")
    return "\n".join(lines)
