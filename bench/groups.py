"""The gain of two learners in a group over one, beside two bare processes of torch's DistributedDataParallel.

    python -m bench groups [REPEATS]        (five minutes)

DQN with a network of two wide layers learns from batches of 4,096 rows, each learner with `torch_threads: 1`. Nodes
that always give the same batch feed the learners, one each, so that little but learning is measured. The bare
processes do the same computation with gloo. Results are medians of the time of a train iteration; runs of two lengths
are subtracted, so that starting does not count. Two processes that exchange nothing show what the machine can give.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import flowrl
from bench._arguments import benchmark_parser
from flowrl.core.batch import Batch, Column
from flowrl.core.config import Config, param
from flowrl.core.facts import Facts, Surroundings
from flowrl.core.node import Node
from flowrl.core.ports import Out, StateIn
from flowrl.core.state import State

ROWS, OBS, ACTIONS = 4096, 64, 8
HIDDEN = [512, 512]
SHORT, LONG = 5, 35  # train iterations
REPEATS = 5
TARGET_GAIN = 1.6
COLUMNS = {
    "obs": Column("float32", (OBS,), low=-1.0, high=1.0),
    "next_obs": Column("float32", (OBS,), low=-1.0, high=1.0),
    "action": Column("int64", n=ACTIONS),
    "reward": Column("float32"),
    "discount": Column("float32"),
}


class FixedBatches(Node):
    """Gives the same batch in each firing."""

    role = "collector"
    data = Out("samples")

    class Config(Config):
        rows: int = param(ROWS, "rows of a batch", ge=1)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"data": COLUMNS}, rows={"data": config.rows}, checks_numbers=True)

    def setup(self) -> None:
        rng, rows = self.ctx.rng("rows"), self.config.rows
        self.batch = Batch(
            {
                "obs": rng.uniform(-1, 1, (rows, OBS)).astype(np.float32),
                "next_obs": rng.uniform(-1, 1, (rows, OBS)).astype(np.float32),
                "action": rng.integers(ACTIONS, size=rows),
                "reward": rng.standard_normal(rows).astype(np.float32),
                "discount": np.full(rows, 0.99, np.float32),
            }
        )

    def fire(self) -> Batch:
        return self.batch


class UnusedWeights(Node):
    """Takes the weights, which a learner must give to somebody, after more firings than are measured."""

    weights = StateIn("weights")

    def fire(self, weights: State) -> None:
        raise AssertionError("the run is too long")


def graph(learners: int, reduce: str = "exact") -> dict[str, Any]:
    """A group of learners, each with batches of its own; the rows of all together are those of one."""
    learner: dict[str, Any] = {"type": "learner", "replicas": learners, "torch_threads": 1}
    if reduce != "exact":
        learner["reduce"] = reduce
    batches = {"type": f"{__name__}:FixedBatches", "replicas": learners, "rows": ROWS // learners}
    model = {"type": "mlp", "hidden": HIDDEN}
    return {
        "policy": {"type": "dqn", "model": model, "dueling": False, "double": False},
        "nodes": {
            "batches": batches,
            "learner": learner,
            "unused": f"{__name__}:UnusedWeights",
        },
        "edges": ["batches -> learner", {"learner -> unused": {"every": 10 * LONG}}],
    }


def iteration_s(data: dict[str, Any], placement: str) -> float:
    """The seconds of a train iteration."""
    found = []
    for iters in (SHORT, LONG):
        with tempfile.TemporaryDirectory() as folder:
            run = flowrl.load(data).run(
                placement=placement, train_iters=iters, out=Path(folder) / "r", quiet=True
            )
            found.append(run.training_s)
    return (found[1] - found[0]) / (LONG - SHORT)


def bare_network() -> nn.Module:
    sizes = [OBS, *HIDDEN]
    layers = [x for a, b in zip(sizes, HIDDEN, strict=False) for x in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(HIDDEN[-1], ACTIONS))


def bare_iterations(rank: int, learners: int, address: str, rows: int, found: Any) -> None:
    """Learn in one of several bare processes; with an address, their gradients are averaged by gloo."""
    torch.set_num_threads(1)
    net, target = bare_network(), bare_network()
    model: Callable[..., Any] = net
    if address:
        import torch.distributed as distributed

        distributed.init_process_group(
            "gloo", init_method=f"file://{address}", rank=rank, world_size=learners
        )
        model = nn.parallel.DistributedDataParallel(net)
    optimiser = torch.optim.Adam(net.parameters(), 1e-3)
    obs, next_obs = torch.rand(2, rows, OBS)
    action, reward = torch.randint(ACTIONS, (rows, 1)), torch.randn(rows)

    def learn() -> Tensor:
        with torch.no_grad():
            wanted = reward + 0.99 * target(next_obs).max(1).values
        loss = nn.functional.huber_loss(model(obs).gather(1, action)[:, 0], wanted)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimiser.step()
        return loss

    for _ in range(SHORT):
        learn()
    began_s = time.perf_counter()
    for _ in range(LONG - SHORT):
        learn()
    found.put((time.perf_counter() - began_s) / (LONG - SHORT))
    if address:  # otherwise the process aborts at its end
        distributed.destroy_process_group()


def bare_iteration_s(learners: int, rows: int, exchanges: bool = True) -> float:
    """The seconds of a train iteration in bare processes, of which each learns from so many rows."""
    spawn = multiprocessing.get_context("spawn")
    found = spawn.Queue()
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/addresses" if exchanges and learners > 1 else ""
        processes = [
            spawn.Process(target=bare_iterations, args=(rank, learners, address, rows, found))
            for rank in range(learners)
        ]
        for process in processes:
            process.start()
        times_s = [found.get(timeout=600) for _ in processes]
        for process in processes:
            process.join()
    return max(times_s)


CASES: dict[str, Callable[[], float]] = {
    "one learner": lambda: iteration_s(graph(1), "serial"),
    "two learners": lambda: iteration_s(graph(2), "processes"),
    "two learners, reduce: fast": lambda: iteration_s(graph(2, "fast"), "processes"),
    "one bare process": lambda: bare_iteration_s(1, ROWS),
    "two bare processes (DDP)": lambda: bare_iteration_s(2, ROWS // 2),
    "two bare processes without an exchange": lambda: bare_iteration_s(2, ROWS // 2, False),
}


def measure(repeats: int) -> dict[str, float]:
    """The median seconds of a train iteration of each case. The cases are repeated in turn."""
    found: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(repeats):
        for name, case in CASES.items():
            found[name].append(case())
    return {name: statistics.median(times_s) for name, times_s in found.items()}


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, and print the results."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument("repeats", nargs="?", type=int, default=REPEATS)
    times_s = measure(parser.parse_args(arguments).repeats)
    results: dict[str, Any] = {"rows": ROWS, "hidden": HIDDEN, "target gain": TARGET_GAIN}
    for name, seconds in times_s.items():
        one = times_s["one bare process" if "bare" in name else "one learner"]
        results[f"{name} (ms)"] = round(seconds * 1e3, 2)
        results[f"{name} (gain)"] = round(one / seconds, 2)
        print(f"{name:40} {seconds * 1e3:8.1f} ms  {one / seconds:5.2f} x")
    return results
