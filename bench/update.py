"""The cost of a train iteration beside its bare passes through torch.

    python -m bench update [--only NAME ...] [--seconds S]

The bare work of an iteration is recorded from it: the passes through modules on the same inputs, with and without
gradients, and for each gradient step a backward pass from the means of the heads, through all networks on the way to
the parameters, and a step of torch.optim.Adam. What is left is the cost of the algorithm and of flowrl: losses,
targets, advantages, metrics, columns, copies. Both take turns; times are of the CPU, in one thread, and the smallest of
all turns counts, because other programs can only add to it.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from bench._arguments import benchmark_parser
from flowrl.core.batch import Array, Batch, Column
from flowrl.core.state import Count
from flowrl.machine.numerics import reset_numerics
from flowrl.nodes.algorithm import Algorithm
from flowrl.nodes.catalogue import CATALOGUE
from flowrl.nodes.models.networks import TrainableNetwork, trainable_networks

OBS = Column("float32", (8,))
DISCRETE, REAL = Column("int64", n=4), Column("float32", (2,), low=-1.0, high=1.0)
ROWS = {"on-policy": 2048, "replay": 256, "sequences": 32}
# A pass through a module, and those of its inputs through which gradients go further back.
Pass = tuple[Callable[[], Any], Sequence[torch.Tensor]]
# The train iterations that are measured together, because not all of them do the same.
PERIODS = {"actor_every_iters": 3, "auxiliary_every_iters": 2}


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, and print the results."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument("--only", nargs="+", choices=algorithms(), default=list(algorithms()))
    parser.add_argument("--seconds", type=float, default=4.0, help="for each algorithm")
    options = parser.parse_args(arguments)
    reset_numerics(1)
    results: dict[str, dict[str, float]] = {}
    print("| | whole ms | bare ms | ratio |\n|---|---|---|---|")
    for name in options.only:
        results[name] = found = measure(name, options.seconds)
        print(
            f"| {name} | {found['whole_ms']:.2f} | {found['bare_ms']:.2f} | {found['ratio']:.2f} |",
            flush=True,
        )
    return results


def algorithms() -> dict[str, type[Algorithm]]:
    """The algorithms of the catalogue by name."""
    found = {}
    for name, path in CATALOGUE["policy"].items():
        module, _, cls = path.partition(":")
        made = getattr(importlib.import_module(module), cls)
        if issubclass(made, Algorithm):
            found[name] = made
    return found


def measure(name: str, seconds: float) -> dict[str, float]:
    """The CPU time of an algorithm's train iteration and of its bare work, in milliseconds."""
    cls = algorithms()[name]
    fields = cls.Config.model_fields
    params = {n: min(fields[n].default, k) for n, k in PERIODS.items() if n in fields}
    policy = cls(obs=OBS, action=REAL if cls.actions == "real" else DISCRETE, **params)
    mode: Any = policy.learn_mode(0)
    batch, command = random_batch(policy), policy.command(Count())
    iters = max(params.values(), default=1)

    def learn() -> None:
        for _ in range(iters):
            mode.forward(batch, command)

    learn()
    bare = recorded_work(mode, learn)
    times: dict[str, list[float]] = {"whole_ms": [], "bare_ms": []}
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s or len(times["bare_ms"]) < 3:
        times["whole_ms"].append(cpu_ms(learn))
        times["bare_ms"].append(cpu_ms(bare))
    found = {key: min(values) / iters for key, values in times.items()}
    return {**found, "ratio": found["whole_ms"] / found["bare_ms"]}


def cpu_ms(call: Callable[[], Any]) -> float:
    begin_s = time.process_time()
    call()
    return 1000 * (time.process_time() - begin_s)


def recorded_work(mode: Any, call: Callable[[], Any]) -> Callable[[], None]:
    """Call a function, and return one that repeats its passes, backward passes and optimiser steps without flowrl."""
    steps: list[Callable[[], None]] = []
    pending: list[Pass] = []
    networks = trainable_networks(mode)
    others = [v for v in vars(mode).values() if hasattr(v, "_pass") and v not in networks.values()]
    for network in (*networks.values(), *others):
        network._pass = _recording(network, network._pass, steps, pending)
    descend = TrainableNetwork.descend

    def recorded_descend(network: Any, loss: Any, lr: float, also: Any = ()) -> Any:
        steps.append(_gradient_step([network, *also], list(pending)))
        pending.clear()
        return descend(network, loss, lr, also)

    TrainableNetwork.descend = recorded_descend  # type: ignore[method-assign]
    try:
        call()
    finally:
        TrainableNetwork.descend = descend  # type: ignore[method-assign]
        for network in (*networks.values(), *others):
            network._pass = network.module

    def repeat() -> None:
        for step in steps:
            step()

    return repeat


def _recording(network: Any, run: Any, steps: list[Any], pending: list[Any]) -> Any:
    module = network.module

    def record(*args: Any, **named: Any) -> Any:
        heads = run(*args, **named)
        inputs, more, training = _leaves(args), _leaves(named), module.training

        def repeat() -> Any:
            with _in_training_mode(module, training):
                return module(*inputs, **more)

        if torch.is_grad_enabled() and any(head.requires_grad for head in heads.values()):
            learned = [x for x in _tensors((inputs, more)) if x.requires_grad]
            pending.append((lambda: sum(h.mean() for h in repeat().values()), learned))
        else:
            steps.append(torch.no_grad()(repeat))
        return heads

    return record


@contextmanager
def _in_training_mode(module: Any, training: bool) -> Iterator[None]:
    """Within it, a module is in training mode or not, on which the work of batch normalisation depends."""
    before = module.training
    if before != training:
        module.train(training)
    try:
        yield
    finally:
        if before != training:
            module.train(before)


def _gradient_step(networks: list[Any], passes: list[Pass]) -> Callable[[], None]:
    parameters = [p for network in networks for p in network.parameters]
    copies = [torch.nn.Parameter(p.detach().clone()) for p in parameters]
    optimiser = torch.optim.Adam(copies, lr=1e-9, foreach=True)
    inputs = [x for _, inputs in passes for x in inputs]

    def step() -> None:
        if passes:
            loss: Any = sum(one() for one, _ in passes)
            grads = torch.autograd.grad(loss, [*parameters, *inputs], allow_unused=True)
            for copy, grad in zip(copies, grads, strict=False):
                copy.grad = grad
        optimiser.step()

    return step


def _leaves(values: Any) -> Any:
    """The values, of which those that depend on parameters become leaves that get a gradient as well."""
    if isinstance(values, torch.Tensor):
        return values.detach().requires_grad_(values.requires_grad)
    if isinstance(values, dict):
        return {name: _leaves(value) for name, value in values.items()}
    return tuple(map(_leaves, values)) if isinstance(values, tuple) else values


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, dict):
        yield from (x for value in values.values() for x in _tensors(value))
    elif isinstance(values, tuple):
        yield from (x for value in values for x in _tensors(value))


def random_batch(policy: Algorithm) -> Batch:
    """Rows with the columns that an algorithm learns from, in episodes of 64 steps."""
    kind = "on-policy" if policy.learns_across_rows else "replay"
    if policy.unrolls == "always":
        kind = "sequences"
    rng, rows = np.random.default_rng(0), ROWS[kind]
    found = {name: _random(c, rows, rng) for name, c in policy.learn_columns().items()}
    for name, value in {"discount": 0.99, "logp": np.log(0.25), "valid": True}.items():
        if name in found:
            found[name][:] = value
    if "last" in found and kind == "on-policy":
        found["last"][63::64] = True
    return Batch(found)


def _random(column: Column, rows: int, rng: np.random.Generator) -> Array:
    shape, dtype = (rows, *column.shape), np.dtype(column.dtype)
    if dtype.kind == "b":
        return np.zeros(shape, bool)
    if column.n is not None:
        return rng.integers(column.n, size=shape).astype(dtype)
    if dtype.kind in "iu":
        return np.zeros(shape, dtype)
    return rng.uniform(-1, 1, shape).astype(dtype)


if __name__ == "__main__":
    main([])
