"""Short runs of the bundled graphs: the cases, how they are run, and the results that must be equal."""

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
from flowrl.graph.bundled import bundled_graphs
from flowrl.graph.yaml_writer import flow_text
from flowrl.runs.token_diff import diff_tokens
from tests.graphs.test_bundled_graphs import OFFLINE, OTHER_ENVS, SHORT, SPREAD
from tests.sites.run_comparison import Results, read_results

Cut = Literal["iters", "steps", "verdict"]
CUTS: tuple[Cut, ...] = ("iters", "steps", "verdict")
SEED = 4

DQN = {"evaluator.episodes": 2, "evaluator.weights.every": 12}
VALUE_BASED = ("acer", "c51", "discrete_sac", "fqf", "iqn", "mdqn", "qrdqn", "rainbow", "sql")
IMITATING = ("airl", "gail", "pwil", "red")
ON_POLICY = (
    "ppo",
    "ppo_group",
    *(f"ppo_{name}" for name in IMITATING),
    "a2c",
    "ppg",
    "pqn",
    "reinforce",
    "trpo",
)
PENDULUM = ("crossq", "d4pg", "ddpg", "redq", "sac", "td3", "tqc")
SHORT_EPISODES = {**DQN, "env.max_episode_steps": 40}
PPO = {"evaluator.episodes": 2, "evaluator.weights.every": 2}
DECOMPOSED = ("collaq", "qmix", "qplex", "vdn", "wqmix")
SPREAD_REPLAYED = {**DQN, "buffer.batch_size": 16}
SMALL: Mapping[str, Mapping[str, Any]] = {
    "cartpole_dqn": DQN,
    "cartpole_dqn_demos": DQN,
    "cartpole_dqn_per": DQN,
    "cartpole_dqn_record": {**DQN, "tape.rows": 40},
    "cartpole_dqn_rnd": DQN,
    "cartpole_dqn_gail": DQN,
    "cartpole_sqil": DQN,
    "cartpole_dagger": DQN,
    "cartpole_distillation": DQN,
    "bitflip_dqn_her": DQN,
    "cartpole_dqfd": DQN,
    "pendulum_sac_record": SHORT_EPISODES,
    **{f"cartpole_ppo_{name}": {**PPO, "collector.n_sample": 128} for name in IMITATING},
    **{f"mountaincar_dqn_{name}": {**DQN, "evaluator.episodes": 1} for name in ("icm", "rnd")},
    "pendulum_sac_trex": {**SHORT_EPISODES, "trex.batch_size": 2},
    "cartpole_ppo": {**PPO, "collector.n_sample": 128, "learner.log_every_iters": 1},
    "cartpole_ppo_group": {**PPO, "collector.n_sample": 128, "learner.log_every_iters": 1},
    "mountaincar_dqn": {**DQN, "evaluator.episodes": 1},
    "spread_iql": {**DQN, "evaluator.episodes": 3, "buffer.batch_size": 16},
    "spread_ippo": {**PPO, **SHORT["spread_ippo"]},
    "hiddencartpole_ppo": {**PPO, "collector.n_sample": 128},
    "hiddencartpole_impala": {**PPO, "collector.n_sample": 320},
    "hiddencartpole_r2d2": DQN,
    "hiddencartpole_r2d3": DQN,
    "mountaincar_dqfd": {**DQN, "evaluator.episodes": 1, "buffer.updates_per_push": 2},
    "cartpole_a2c": PPO,
    "cartpole_impala": {**PPO, "collector.n_sample": 128},
    "cartpole_ppg": {**PPO, "collector.n_sample": 128, "policy.auxiliary_every_iters": 2},
    "cartpole_pqn": {**PPO, "collector.n_sample": 128},
    "cartpole_reinforce": {**PPO, "collector.n_episode": 2},
    "cartpole_trpo": {**PPO, "collector.n_sample": 128},
    **{f"spread_{name}": {**PPO, "collector.n_sample": 160} for name in ("coma", "happo", "mappo")},
    **dict.fromkeys(("spread_atoc", "spread_maddpg", "spread_masac"), SPREAD_REPLAYED),
    "twostep_qmix": DQN,
    "foraging_mappo": {**PPO, "collector.n_sample": 160},
    **dict.fromkeys((f"spread_{name}" for name in DECOMPOSED), SPREAD_REPLAYED),
    **{f"cartpole_{name}": DQN for name in VALUE_BASED},
    **{f"pendulum_{name}": SHORT_EPISODES for name in PENDULUM},
    **dict.fromkeys(("lunarlander_dqn", "lunarlander_rainbow"), SHORT_EPISODES),
    **dict.fromkeys(("lunarlander_sac", "lunarlander_td3"), SHORT_EPISODES),
    **dict.fromkeys(("acrobot_dqn", "bipedalwalker_tqc", "hopper_sac"), SHORT_EPISODES),
    **{graph: {**PPO, **SHORT[graph]} for graph in SHORT if graph.endswith("_ppo")},
    "speaker_ppo": {**SHORT["speaker_ppo"], "evaluator.listener_weights.every": 2},
    "tag_ppo": {**SHORT["tag_ppo"], "evaluator.wolves_weights.every": 2},
    "crazyclimber_ppo": {
        **PPO,
        **SHORT["crazyclimber_ppo"],
        "collector.n_sample": 32,
        "env.max_episode_steps": 80,
        "policy.epochs": 1,
    },
}
EASY_RETURNS = {  # that a policy soon reaches, but not in the first rounds
    "acrobot_dqn": -100,
    "acrobot_ppo": -100,
    "bipedalwalker_tqc": -500,
    "bitflip_dqn_her": 0,  # the win rate
    "crazyclimber_ppo": 0,
    "walker2d_ppo": -100,
    "hopper_ppo": 0,
    "hopper_sac": 0,
    **{f"lunarlander_{name}": -2000 for name in ("dqn", "ppo", "rainbow", "sac", "td3")},
    "minigrid_ppo": 0,
    "minigriddict_ppo": 0,
    "mountaincar_dqfd": -200,
    "mountaincar_dqn": -200,
    "mountaincar_dqn_icm": -200,
    "mountaincar_dqn_rnd": -200,
    "pendulum_ppo": -1800,
    **{f"spread_{name}": -1000 for name in SPREAD},
    **dict.fromkeys(("spread_ippo", "spread_iql", "speaker_ppo", "tag_ppo"), -1000),
    "twostep_qmix": 6,
    "foraging_mappo": 0,
    **{f"pendulum_{name}": -1800 for name in (*PENDULUM, "sac_record", "sac_trex")},
}
# Of several learners, the weights that collectors take. The first ones pace the evaluator.
WEIGHTS = {
    "speaker_ppo": ("listener_weights", "speaker_weights"),
    "tag_ppo": ("wolves_weights", "sheep_weights"),
}
UNREACHED_RETURN = 1e9
UNREACHED_GOALS = {"bitflip_dqn_her": 1.0}  # of graphs whose goal is no return: the win rate
COMPARED = sorted(set(bundled_graphs()) - OFFLINE)
# Graphs whose nodes are those of another one, so that only formulas differ. The tests compare them in threads, and
# `python -m tests.sites.matrix` in every placement. OTHER_ENVS are compared by the matrix only.
SAME_NODES = {
    *(f"cartpole_{name}" for name in ("a2c", "c51", "discrete_sac", "fqf", "iqn", "mdqn", "pqn")),
    *(f"cartpole_{name}" for name in ("qrdqn", "rainbow", "sql", "trpo")),
    *(f"pendulum_{name}" for name in ("crossq", "d4pg", "ddpg", "redq", "tqc")),
    *(f"spread_{name}" for name in ("collaq", "qmix", "qplex", "vdn", "wqmix")),
    *(f"spread_{name}" for name in ("atoc", "coma", "happo", "maddpg", "masac")),
    "hiddencartpole_impala",
}
DISTINCT = [graph for graph in COMPARED if graph not in SAME_NODES | OTHER_ENVS]


@dataclass(frozen=True)
class Case:
    """A bundled graph with some settings, and the kind of its cut."""

    graph: str
    cut: Cut
    replicas: int = 1
    lag: int = 0

    def __str__(self) -> str:
        return f"{self.graph} {self.cut} replicas {self.replicas} lag {self.lag}"

    @property
    def is_off_policy(self) -> bool:
        """Whether the algorithm may learn from data of older weights."""
        return not self.graph.endswith(ON_POLICY)

    @property
    def sets(self) -> dict[str, Any]:
        """The settings that differ from the bundled graph."""
        goal = UNREACHED_GOALS.get(self.graph, UNREACHED_RETURN)
        sets = {**SMALL[self.graph], "evaluator.stop_value": goal}
        weights = WEIGHTS.get(self.graph, ("weights",))
        if self.cut == "verdict":  # later than the first rounds, so that sites are ahead
            sets["evaluator.stop_value"] = EASY_RETURNS.get(self.graph, 9.0)
            sets[f"evaluator.{weights[0]}.every"] = 30 if self.is_off_policy else 3
        lags = {f"collector.{name}.lag": self.lag for name in weights}
        return {**sets, "collector.replicas": self.replicas, **lags}

    @property
    def limits(self) -> dict[str, int]:
        """The limits of the run."""
        if self.cut == "iters":
            return {"train_iters": 30 if self.is_off_policy else 3}
        graph = flowrl.load(self.graph, self.sets).check().graph
        collector = graph.nodes["collector"].config
        round_steps = getattr(collector, "n_sample", 100) * self.replicas
        if self.cut == "verdict":
            return {"steps": round_steps * 40 + 5000}
        warmup = max((phase.steps or 0 for phase in graph.phases), default=0)
        return {"steps": warmup + 3 * round_steps + 1}

    @property
    def flow(self) -> FlowGraph:
        return flowrl.load(self.graph, self.sets)

    def arguments(self) -> list[str]:
        """Return the arguments of `flowrl run`."""
        words = [self.graph, f"--seed={SEED}"]
        words += [f"--set={key}={flow_text(value)}" for key, value in self.sets.items()]
        return words + [f"--{k.replace('_', '-')}={v}" for k, v in self.limits.items()]


def cases_of(graph: str) -> Iterator[Case]:
    """Yield cases with every cut, one and three collectors, and lags if the algorithm allows them."""
    lags = (0, 1, 2) if Case(graph, "iters").is_off_policy else (0,)
    for replicas, lag, cut in product((1, 3), lags, CUTS):
        yield Case(graph, cut, replicas, lag)


def why_not_comparable(graph: str) -> str:
    """Return why the runs of a graph cannot be compared on this machine; empty if they can."""
    found = flowrl.load(graph).check()
    for problem in found.problems:
        return f"{problem.what}; {problem.hint}"
    return "" if found.deterministic else f"it is not deterministic: {found.reasons[0]}"


def mixed_placement(graph: str) -> str:
    """Return a placement with nodes in processes, in threads and in the main site in turn."""
    nodes = flowrl.load(graph).check().graph.nodes
    fire = [n for n, spec in nodes.items() if spec.fires]
    places = zip(fire, cycle(["process", "thread", "main"]))
    return ",".join(f"{node}={place}" for node, place in places)


def run_case(case: Case, placement: str, folder: Path) -> Results:
    """Run a case with random global states, and return its results."""
    named = mixed_placement(case.graph) if placement == "mixed" else placement
    folder.mkdir(parents=True)
    np.random.seed(random.SystemRandom().randrange(2**32))
    with working_directory(folder):
        case.flow.run(
            placement=named,
            seed=SEED,
            out=folder / "r",
            hash_tokens=True,
            quiet=True,
            **case.limits,
        )
    return collect_results(folder / "r", folder)


@contextmanager
def working_directory(folder: Path) -> Iterator[None]:
    """Work in a folder, so that nodes write their files into it."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def collect_results(out: Path, *places: Path) -> Results:
    """Return all results that must be equal: the run's folder without times, and the files that nodes wrote."""
    facts = read_results(out)
    facts["tokens.bin"] = (out / "tokens.bin").read_bytes()
    for place in places:
        facts |= {f.name: f.read_bytes() for f in sorted(place.glob("*.npz"))}
    return facts


def describe_difference(serial: Results, other: Results, a: Path, b: Path) -> str:
    """Describe the first difference of two results; empty if they are equal."""
    keys = [key for key in {**serial, **other} if serial.get(key) != other.get(key)]
    if not keys:
        return ""
    return f"{', '.join(keys)} differ\n{diff_tokens(a, b)}"
