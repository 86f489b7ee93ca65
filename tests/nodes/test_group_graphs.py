"""Graphs of groups of agents: equal in every placement, continued, evaluated, and refused where they are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import flowrl
from flowrl.core.errors import GraphError, UsageError
from flowrl.graph.catalogue import Catalogue
from flowrl.graph.expand import expand
from flowrl.graph.json_schema import json_schema
from flowrl.graph.yaml_text import read_yaml
from flowrl.runs.evaluation import evaluate_checkpoint
from flowrl.runs.snapshot_files import snapshot_folders
from tests.sites.run_comparison import read_results

GRAPH = """
env:
  type: pettingzoo
  id: "tests.nodes.envs.group_envs:Pasture"
  agents: {groups: {wolves: [wolf_*], sheep: [sheep_*]}}
policy: {type: ppo, model: {type: mlp, hidden: [8]}, gamma: 0.5, lr: 0.01, minibatch_size: 16, epochs: 2}
nodes:
  envs: {type: env_manager, count: 4}
  collector: {type: group_collector, n_sample: 24, log_every_steps: 24, policies: {wolves: {}, sheep: {lr: 0.02}}}
  wolves: learner
  sheep: {type: learner, policy: {lr: 0.02}}
  evaluator: {type: group_evaluator, episodes: 4, group: wolves, policies: {wolves: {}, sheep: {}}}
edges:
  - collector <-> envs
  - collector.wolves -> wolves
  - collector.sheep -> sheep
  - wolves -> collector.wolves_weights
  - sheep -> collector.sheep_weights
  - wolves -> evaluator.wolves_weights: {every: 3}
  - sheep -> evaluator.sheep_weights
limits: {steps: 4000}
"""
WOLVES_ALONE = """
extends: g.yaml
nodes:
  collector: {policies: {sheep: {type: random, lr: null}}}
  evaluator: {policies: {sheep: {type: random}}}
  sheep: null
"""
TEAM = """
extends: g.yaml
env: {agents: {groups: {wolves: {names: [wolf_*], agents: joint}}}}
nodes:
  collector: {policies: {wolves: {type: mappo}}}
  wolves: {policy: {type: mappo}}
  evaluator: {policies: {wolves: {type: mappo}}}
"""
VALUES = """
extends: g.yaml
nodes:
  buffer: {type: naive_buffer, size: 500, batch_size: 32, updates_per_push: 1, policy: {type: dqn, nstep: 3}}
  wolves: {policy: {type: dqn, nstep: 3}}
  collector: {policies: {wolves: {type: dqn, nstep: 3}}}
  evaluator: {policies: {wolves: {type: dqn, nstep: 3}}}
edges:
  - collector.wolves -> wolves: null
  - collector.wolves -> buffer -> wolves
"""


def write(folder: Path, text: str = GRAPH) -> Path:
    (folder / "g.yaml").write_text(GRAPH)
    (folder / "h.yaml").write_text(text)
    return folder / "h.yaml"


PLACEMENTS = ("threads", "processes", "collector=process,wolves=thread,sheep=main", "envs=process")


@pytest.mark.slow
@pytest.mark.parametrize("text", [WOLVES_ALONE, TEAM, VALUES])
def test_variants_have_the_same_results_in_processes(text: str, tmp_path: Path) -> None:
    compare(write(tmp_path, text), tmp_path, ["serial", "processes"], 6)


def compare(path: Path, folder: Path, placements: list[str], iters: int) -> None:
    found = []
    for number, placement in enumerate(placements):
        out = folder / f"run{number}"
        kind = "sync_subprocess_env_manager" if placement == "threads" else "env_manager"
        graph = flowrl.load(path, {"envs.type": kind})
        assert graph.run(placement=placement, train_iters=iters, out=out, quiet=True).deterministic
        results = read_results(out)
        (
            results.pop("state_digest"),
            results.pop("why"),
            results.pop("resume"),
            results.pop("repeat"),
        )
        found.append(results)
    for results, placement in zip(found, placements, strict=True):
        assert results == found[0], placement


@pytest.mark.slow
def test_a_graph_has_the_same_results_in_one_thread_and_in_processes(tmp_path: Path) -> None:
    compare(write(tmp_path), tmp_path, ["serial", "envs=process"], 6)


@pytest.mark.slow
def test_a_graph_has_the_same_results_in_every_placement(tmp_path: Path) -> None:
    compare(write(tmp_path), tmp_path, ["serial", *PLACEMENTS], 6)


@pytest.mark.slow
def test_a_run_continues_with_the_same_bits(tmp_path: Path) -> None:
    path = write(tmp_path)
    whole = flowrl.load(path).run(train_iters=8, out=tmp_path / "whole", quiet=True)
    sets = {"snapshots.every_rounds": 3}
    flowrl.load(path, sets).run(train_iters=5, out=tmp_path / "part", quiet=True)
    assert snapshot_folders(tmp_path / "part")
    again = flowrl.resume(tmp_path / "part", placement="threads", train_iters=8, quiet=True)
    assert again.resumed_after is not None
    assert again.digest == whole.digest
    metrics = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "part")]
    assert metrics[0] == metrics[1]


@pytest.mark.slow
def test_a_checkpoint_has_the_policies_of_all_groups(tmp_path: Path) -> None:
    result = flowrl.load(write(tmp_path)).run(train_iters=6, out=tmp_path / "run", quiet=True)
    obs = {"wolves": np.zeros(4, np.float32), "sheep": np.zeros(3, np.float32)}
    for checkpoint in ("best", "last"):
        assert result.policy(checkpoint, learner="wolves").act(obs["wolves"]) in range(3)
        assert flowrl.policy(tmp_path / "run", checkpoint, "sheep").act(obs["sheep"]).shape == (1,)
        found = evaluate_checkpoint(tmp_path / "run", checkpoint=checkpoint)
        assert {"return_mean", "wolves/return_mean", "sheep/team_return_mean"} <= {*found.metrics}
    with pytest.raises(
        UsageError, match=r"it has the policies of sheep, wolves; say which: `flowrl"
    ):
        result.policy()
    with pytest.raises(UsageError, match=r"no policy of a learner 'wolfes'; did you mean 'wolves'"):
        result.policy(learner="wolfes")
    rows = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    evaluations = [row for row in rows if row["role"] == "evaluator"]
    assert result.best_return == max(row["wolves/return_mean"] for row in evaluations)


def test_a_group_may_have_the_policy_of_an_earlier_run(tmp_path: Path) -> None:
    flowrl.load(write(tmp_path)).run(train_iters=6, out=tmp_path / "run", quiet=True)
    expert = f"{{type: expert, checkpoint: {tmp_path}/run/checkpoints/best.safetensors"
    text = WOLVES_ALONE.replace("{type: random}", expert + ", learner: sheep}")
    text = text.replace("{type: random, lr: null}", expert + ", learner: sheep, lr: null}")
    flowrl.load(write(tmp_path, text)).run(train_iters=1, out=tmp_path / "next", quiet=True)
    text = text.replace(", learner: sheep", "")
    what = "best.safetensors' has the policies of sheep, wolves; give the name of one: `learner: sheep`"
    with pytest.raises(Exception, match=what):
        flowrl.load(write(tmp_path, text)).run(train_iters=1, out=tmp_path / "wrong", quiet=True)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"collector.policies": {"wolves": {}}},
            "nodes.collector: the env has the groups wolves, sheep, and there is no policy for sheep",
        ),
        (
            {"evaluator.policies.dogs": "random"},
            "nodes.evaluator: there is a policy for dogs, and the env has the groups wolves, sheep",
        ),
        (
            {"collector.policies.sheep.lrr": 1.0},
            "nodes.collector.policies.sheep: unknown key 'lrr'; did you mean 'lr'?",
        ),
        (
            {"collector.policies": 3},
            "nodes.collector.policies is 3; expected a policy for each name, {NAME: {type: …}}",
        ),
        (
            {"collector.policies.sheep.type": "dqn", "sheep.policy": {"type": "dqn"}},
            "nodes.collector: the group sheep: ",
        ),
        (
            {"env.agents": {"groups": {"wolves": ["wolf_*"]}}},
            "env: agent sheep_0 is in no group; add it to one, or make one for it; a group may have the policy "
            "`random`",
        ),
        (
            {"env.agents": {"groups": {"wolves": ["wolf_*", "sheep_*"]}}},
            "env: the agents of the group wolves differ: the observations of wolf_0 are ",
        ),
        (
            {"collector.type": "sample_collector", "collector.policies": None},
            "env: the agents of the env are in groups (wolves, sheep), and this node has one policy",
        ),
        ({"evaluator.stop_value": 3.0, "evaluator.group": None}, "which group 3 is the return"),
    ],
)
def test_wrong_graphs_are_refused(change: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(GraphError) as refused:
        flowrl.load(write(tmp_path), change).check().require_sound()
    assert problem in str(refused.value)


def test_weights_of_another_group_are_refused(tmp_path: Path) -> None:
    swapped = GRAPH.replace(
        "- wolves -> collector.wolves_weights", "- sheep -> collector.wolves_weights"
    )
    with pytest.raises(GraphError) as refused:
        flowrl.load(write(tmp_path, swapped)).check().require_sound()
    assert "collector.wolves_weights" in str(refused.value)


def test_a_learning_group_without_weights_is_refused(tmp_path: Path) -> None:
    cut = GRAPH.replace("  - sheep -> collector.sheep_weights\n", "")
    with pytest.raises(GraphError, match=r"collector.*sheep_weights"):
        flowrl.load(write(tmp_path, cut)).check().require_sound()


def test_a_resolved_graph_says_where_each_policy_was_written(tmp_path: Path) -> None:
    loaded = flowrl.load(write(tmp_path)).check()
    text = expand(loaded.graph, origins=True)
    lines = [line for line in text.splitlines() if line.strip().startswith(("lr:", "gamma:"))]
    assert all("h.yaml" in line for line in lines)
    (tmp_path / "again.yaml").write_text(expand(loaded.graph))
    assert expand(flowrl.load(tmp_path / "again.yaml").check().graph) == expand(
        loaded.graph
    ).replace("# h, resolved", "# again, resolved")


@pytest.mark.parametrize(
    ("policies", "good"),
    [({"a": {"type": "random"}, "b": "ppo"}, True), ({"a": 3}, False), ({}, False), ([], False)],
)
def test_the_schema_knows_policies_by_name(policies: Any, good: bool, tmp_path: Path) -> None:
    plain = read_yaml(write(tmp_path), "g").plain()
    plain["nodes"]["collector"]["policies"] = policies
    found = list(jsonschema.Draft202012Validator(json_schema(Catalogue())).iter_errors(plain))
    assert (found == []) is good, found
