"""The trained policy of a run, as a program uses it afterwards."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import flowrl
from flowrl.core.batch import Column
from flowrl.core.checkpoint import read_acting
from flowrl.core.errors import RunError, UsageError
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.policies.dqn import Dqn
from tests.runs.test_run import EDGES, NODES
from tests.toys.toy_runs import toy_graph

OBS = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
SMALL = {"extends": "cartpole_dqn", "policy": {"model": {"hidden": [16]}}}
QUICK = {"evaluator.episodes": 2, "evaluator.weights.every": 1, "evaluator.stop_value": None}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> flowrl.RunResult:
    out = tmp_path_factory.mktemp("runs") / "cartpole-1"
    return flowrl.load(SMALL, QUICK).run(train_iters=5, out=out, quiet=True)


def actions_of(checkpoint: Path) -> list[int]:
    """The actions of a policy that is made by hand, with the weights of a checkpoint."""
    policy = Dqn(obs=Column("float32", (4,)), action=Column("int64", n=2), model=made_model())
    mode = policy.eval_mode(0)
    mode.load(read_acting(checkpoint)[0])
    return list(mode.forward(OBS)["action"])


def made_model() -> Mlp:
    return Mlp(hidden=[16], activation="tanh")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["best", "last"])
def test_it_acts_as_the_weights_of_the_checkpoint_say(name: str, result: flowrl.RunResult) -> None:
    file = Path(result.run_dir) / "checkpoints" / f"{name}.safetensors"
    policy, expected = result.policy(name), actions_of(file)
    assert list(policy.act(OBS)) == expected
    assert [policy.act(obs) for obs in OBS] == expected
    assert list(flowrl.policy(file).act(OBS)) == expected
    assert list(flowrl.policy(result.run_dir, name).act(OBS)) == expected


def test_without_a_name_the_best_checkpoint_is_taken(result: flowrl.RunResult) -> None:
    best = Path(result.run_dir) / "checkpoints" / "best.safetensors"
    assert list(result.policy().act(OBS)) == actions_of(best)
    assert list(flowrl.policy(result.run_dir).act(OBS)) == actions_of(best)


@pytest.mark.slow
def test_a_run_is_named_as_on_the_command_line(
    result: flowrl.RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(result.run_dir, tmp_path / "runs" / "cartpole-1")
    expected = list(result.policy().act(OBS))
    assert list(flowrl.policy("cartpole-1").act(OBS)) == expected
    assert list(flowrl.policy("runs/cartpole-1").act(OBS)) == expected


def test_a_run_without_an_evaluator_has_the_last_weights(tmp_path: Path) -> None:
    graph = flowrl.load({**SMALL, "nodes": {"evaluator": None}})
    result = graph.run(train_iters=2, out=tmp_path / "r", quiet=True)
    last = Path(result.run_dir) / "checkpoints" / "last.safetensors"
    assert list(result.policy().act(OBS)) == actions_of(last)


def test_what_is_missing_is_named(result: flowrl.RunResult, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no checkpoint 'beste'; did you mean 'best'"):
        result.policy("beste")
    with pytest.raises(UsageError, match=r"is not a run's folder, as it has no graph\.yaml"):
        flowrl.policy(tmp_path)
    with pytest.raises(UsageError, match="there is no such run here"):
        flowrl.policy("nothing")
    shutil.copy(Path(result.run_dir) / "checkpoints" / "best.safetensors", tmp_path)
    with pytest.raises(RunError, match="lies in no run's folder, which has the graph"):
        flowrl.policy(tmp_path / "best.safetensors")
    (tmp_path / "begun").mkdir()
    shutil.copy(Path(result.run_dir) / "graph.yaml", tmp_path / "begun")
    with pytest.raises(RunError, match="the run has saved no checkpoint yet"):
        flowrl.policy(tmp_path / "begun")


def test_a_learner_that_cannot_make_its_policy_is_named(tmp_path: Path) -> None:
    result = flowrl.load(toy_graph(NODES, EDGES)).run(train_iters=2, out=tmp_path / "r", quiet=True)
    with pytest.raises(RunError, match="the learner 'l' cannot make its policy; its type"):
        result.policy()
