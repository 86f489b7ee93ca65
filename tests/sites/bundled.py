"""The bundled graphs, cut down so that a run takes a second; where they run, and all that must be equal then."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, product
from pathlib import Path
from typing import Any, Literal

import numpy as np

import flowrl
from flowrl.api import FlowGraph
from flowrl.graph.yaml_text import flow_text
from flowrl.runs.token_diff import diff_tokens
from tests.graphs.test_bundled_graphs import SHORT
from tests.sites.comparing import Facts, facts_of

Cut = Literal["iters", "steps", "verdict"]
CUTS: tuple[Cut, ...] = ("iters", "steps", "verdict")
SEED = 4

DQN = {"evaluator.episodes": 2, "evaluator.weights.every": 12}
PPO = {"evaluator.episodes": 2, "evaluator.weights.every": 2}
SMALL: Mapping[str, Mapping[str, Any]] = {
    "cartpole_dqn": DQN,
    "cartpole_dqn_demos": DQN,
    "cartpole_dqn_per": DQN,
    "cartpole_dqn_record": {**DQN, "tape.rows": 40},
    "cartpole_dqn_rnd": DQN,
    "cartpole_ppo": {**PPO, "collector.n_sample": 128, "learner.log_every_iters": 1},
    "mountaincar_dqn": {**DQN, "evaluator.episodes": 1},
    **{graph: {**PPO, **SHORT[graph]} for graph in SHORT if graph.endswith("_ppo")},
    "crazyclimber_ppo": {
        **PPO,
        **SHORT["crazyclimber_ppo"],
        "collector.n_sample": 32,
        "env.max_episode_steps": 80,
        "policy.epochs": 1,
    },
}
REACHED = {  # returns that a policy reaches that has hardly learned, but not at once everywhere
    "acrobot_ppo": -100,
    "crazyclimber_ppo": 0,
    "hopper_ppo": 0,
    "lunarlander_ppo": -2000,
    "minigrid_ppo": 0,
    "mountaincar_dqn": -200,
    "pendulum_ppo": -1800,
}
NEVER = 1e9


@dataclass(frozen=True)
class Case:
    """A bundled graph, what of it differs, and where it ends."""

    graph: str
    cut: Cut
    replicas: int = 1
    lag: int = 0

    def __str__(self) -> str:
        return f"{self.graph} {self.cut} replicas {self.replicas} lag {self.lag}"

    @property
    def is_off_policy(self) -> bool:
        """Whether older weights may have made the data."""
        return "dqn" in self.graph

    @property
    def sets(self) -> dict[str, Any]:
        """What differs from the bundled graph."""
        sets = {**SMALL[self.graph], "evaluator.stop_value": NEVER}
        if self.cut == "verdict":  # not in the first rounds: others shall be ahead by then
            sets["evaluator.stop_value"] = REACHED.get(self.graph, 9.0)
            sets["evaluator.weights.every"] = 30 if self.is_off_policy else 3
        return {**sets, "collector.replicas": self.replicas, "collector.weights.lag": self.lag}

    @property
    def limits(self) -> dict[str, int]:
        """Where it ends at the latest."""
        if self.cut == "iters":
            return {"train_iters": 30 if self.is_off_policy else 3}
        graph = flowrl.load(self.graph, self.sets).check().graph
        a_round = graph.nodes["collector"].config.n_sample * self.replicas
        if self.cut == "verdict":
            return {"steps": a_round * 40 + 5000}
        warmup = max((phase.steps or 0 for phase in graph.phases), default=0)
        return {"steps": warmup + 3 * a_round + 1}

    @property
    def flow(self) -> FlowGraph:
        """The graph."""
        return flowrl.load(self.graph, self.sets)

    def words(self) -> list[str]:
        """The same for the command line."""
        words = [self.graph, f"--seed={SEED}"]
        words += [f"--set={key}={flow_text(value)}" for key, value in self.sets.items()]
        return words + [f"--{k.replace('_', '-')}={v}" for k, v in self.limits.items()]


def cases(graph: str) -> Iterator[Case]:
    """Every cut, with one collector and three, and where the policy allows with lags."""
    lags = (0, 1, 2) if "dqn" in graph else (0,)
    for replicas, lag, cut in product((1, 3), lags, CUTS):
        yield Case(graph, cut, replicas, lag)


def why_not(graph: str) -> str:
    """Why a graph cannot be compared here, or nothing."""
    found = flowrl.load(graph).check()
    for problem in found.problems:
        return f"{problem.what}; {problem.hint}"
    return "" if found.deterministic else f"it is not deterministic: {found.reasons[0]}"


def mixed(graph: str) -> str:
    """Nodes in turn in processes, threads, and where the run was started; services go along, but one."""
    nodes = flowrl.load(graph).check().graph.nodes
    fire = [n for n, spec in nodes.items() if spec.fires]
    places = zip(fire, cycle(["process", "thread", "main"]))
    return ",".join(f"{node}={place}" for node, place in places)


def ran(case: Case, placement: str, folder: Path) -> Facts:
    """Run it in this process's name, with whatever global states; all that is left of it."""
    named = mixed(case.graph) if placement == "mixed" else placement
    folder.mkdir(parents=True)
    np.random.seed(random.SystemRandom().randrange(2**32))
    with inside(folder):
        case.flow.run(placement=named, seed=SEED, out=folder / "r", hash_tokens=True, **case.limits)
    return left(folder / "r", folder)


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder: what a graph writes, it writes there."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def left(out: Path, *places: Path) -> Facts:
    """All that must be equal: what the run's folder holds but times, and the files that nodes wrote."""
    facts = facts_of(out)
    facts["tokens.bin"] = (out / "tokens.bin").read_bytes()
    for place in places:
        facts |= {f.name: f.read_bytes() for f in sorted(place.glob("*.npz"))}
    return facts


def difference(serial: Facts, other: Facts, a: Path, b: Path) -> str:
    """What differs first, or nothing."""
    keys = [key for key in {**serial, **other} if serial.get(key) != other.get(key)]
    if not keys:
        return ""
    return f"{', '.join(keys)} differ\n{diff_tokens(a, b)}"
