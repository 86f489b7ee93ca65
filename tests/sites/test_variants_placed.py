"""Variants of the bundled graphs (env managers, part-graphs, memory, …) have equal results in every placement."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl.runs.evaluation import evaluate_checkpoint
from flowrl.runs.plot import plot_runs
from tests.sites.bundled_cases import (
    SEED,
    SMALL,
    collect_results,
    describe_difference,
    working_directory,
)
from tests.sites.perturbed_environment import perturbed_environment
from tests.sites.run_comparison import Results

NOVELTY = """
nodes:
  rnd: {type: rnd}
  clip: {type: "mine:clip"}
edges: [rnd -> clip]
ports: {data: rnd.data, out: clip.out}
"""
MINE = """
import flowrl
from flowrl import Batch


@flowrl.as_node
def clip(data: Batch, *, most: float = 2.0) -> Batch:
    return data.replace(reward=data["reward"].clip(-most, most))
"""
FEW = {"train_iters": 24}
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, int], str]] = {
    # a text or a bundled name, what is set, where it ends, where it runs
    "a part-graph with nodes beside it, apart from all others": (
        "extends: cartpole_dqn\nnodes: {novelty: {type: novelty.yaml}}\n"
        "edges: [collector -> novelty -> buffer]\n",
        SMALL["cartpole_dqn"],
        FEW,
        "novelty/rnd=process,novelty/clip=thread,collector=process",
    ),
    "a replicated part-graph": (
        "extends: cartpole_dqn\nnodes: {novelty: {type: novelty.yaml, replicas: 3}}\n"
        "edges: [collector -> novelty -> buffer]\n",
        {**SMALL["cartpole_dqn"], "collector.replicas": 3, "collector.weights.lag": 1},
        FEW,
        "novelty=process,collector=thread",
    ),
    "a reward model that learns elsewhere than the learner": (
        "cartpole_dqn_rnd",
        SMALL["cartpole_dqn_rnd"],
        FEW,
        "rnd=process,learner=thread",
    ),
    "priorities that go back to another process": (
        "cartpole_dqn_per",
        {**SMALL["cartpole_dqn_per"], "collector.weights.lag": 2},
        FEW,
        "buffer=process,learner=process:l",
    ),
    "normalised observations, learned at the learner": (
        "cartpole_dqn",
        {**SMALL["cartpole_dqn"], "policy.model.normalise_obs": True},
        FEW,
        "collector=process,evaluator=thread",
    ),
    "exploration that follows progress": (
        "cartpole_dqn",
        {
            **SMALL["cartpole_dqn"],
            "policy.epsilon": {"start": 1.0, "end": 0.1, "env_steps": 2500},
            "collector.replicas": 3,
        },
        FEW,
        "collector=process,learner=thread",
    ),
    "a policy that remembers": (
        "cartpole_ppo",
        {
            **SMALL["cartpole_ppo"],
            "policy.unroll_steps": 16,
            "policy.model": {"type": "gru", "size": 16},
        },
        {"train_iters": 4},
        "collector=process,evaluator=process",
    ),
    "batches that begin unevenly in what was drawn for a round": (
        "cartpole_dqn",
        {
            **{"env.id": "Acrobot-v1", "env.max_episode_steps": 60, "policy.model.hidden": []},
            **{"buffer.batch_size": 33, "evaluator.episodes": 1},
        },
        {"train_iters": 40},
        "learner=process",
    ),
    "envs called from another process": (
        "cartpole_ppo",
        {**SMALL["cartpole_ppo"], "collector.n_sample": 64, "collector.replicas": 3},
        {"train_iters": 3},
        "envs=process,collector=thread,learner=process",
    ),
    "advantages that replicas of the collector compute": (
        "cartpole_ppo",
        {
            **SMALL["cartpole_ppo"],
            "policy.advantages": "collector",
            "policy.normalise_values": True,
            "collector.n_sample": 64,
            "collector.replicas": 3,
        },
        {"train_iters": 3},
        "collector=process,learner=thread",
    ),
    "envs in workers of a process": (
        "cartpole_ppo",
        {**SMALL["cartpole_ppo"], "envs.type": "sync_subprocess_env_manager", "envs.count": 4},
        {"train_iters": 3},
        "collector=process",
    ),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a user's graph and module; child processes are perturbed."""
    for name, value in perturbed_environment().items():
        monkeypatch.setenv(name, value)
    (tmp_path / "novelty.yaml").write_text(NOVELTY)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def run_variant(project: Path, name: str, placement: str, out: str, **sets: Any) -> Results:
    """Run a variant in a placement, and return its results."""
    source, more, limits, _ = VARIANTS[name]
    if "\n" in source:
        (project / "g.yaml").write_text(source)
        source = str(project / "g.yaml")
    folder = project / out
    folder.mkdir()
    with working_directory(folder):
        flowrl.load(source, {**more, "evaluator.stop_value": None, **sets}).run(
            placement=placement, seed=SEED, out=folder / "r", hash_tokens=True, quiet=True, **limits
        )
    return collect_results(folder / "r", folder)


QUICK = "a policy that remembers", "a part-graph with nodes beside it, apart from all others"


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_variant_has_equal_results_in_threads(name: str, project: Path) -> None:
    serial = run_variant(project, name, "serial", "a")
    assert (
        describe_difference(
            serial, run_variant(project, name, "threads", "b"), project / "a/r", project / "b/r"
        )
        == ""
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_has_equal_results_in_its_placement(name: str, project: Path) -> None:
    serial = run_variant(project, name, "serial", "a")
    assert serial["metrics.jsonl"]
    other = run_variant(project, name, VARIANTS[name][3], "b")
    assert describe_difference(serial, other, project / "a/r", project / "b/r") == ""


@pytest.mark.slow
def test_envs_in_workers_have_the_results_of_envs_in_this_process(project: Path) -> None:
    name = "envs in workers of a process"
    workers = run_variant(project, name, "serial", "a")
    in_process = run_variant(project, name, "threads", "b", **{"envs.type": "env_manager"})
    assert describe_difference(workers, in_process, project / "a/r", project / "b/r") == ""


@pytest.mark.slow
def test_films_and_curves_are_equal_in_every_placement(project: Path) -> None:
    name = "envs called from another process"
    found = []
    for out, placement in (("a", "serial"), ("b", VARIANTS[name][3])):
        run_variant(project, name, placement, out)
        with working_directory(project / out):
            evaluation = evaluate_checkpoint(
                Path("r"), episodes=3, seed=5, video=Path("films")
            ).as_dict()
            plot_runs(["r"], "curve.png")
        made = sorted([*(project / out / "films").iterdir(), project / out / "curve.png"])
        found.append((evaluation, {path.name: path.read_bytes() for path in made}))
    assert found[0] == found[1]
    assert len(found[0][1]) == 4
