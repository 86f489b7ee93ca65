"""The log of a training loop by hand: its files are those of a run, and nothing stays in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.core.checkpoint import read_acting
from flowrl.core.errors import UsageError
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.evaluators.evaluator import Evaluator
from flowrl.nodes.learners.hooks import Save
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.policies.dqn import Dqn
from flowrl.runs.learning_curves import read_run

ENV = Gymnasium(id="CartPole-v1")


def train(folder: Path, iters: int = 4) -> dict[str, Any]:
    """Train for some iterations with a log, and return the nodes."""
    envs = SerialEnvManager(env=ENV, count=2, seed=0)
    policy = Dqn(obs=envs.spec().obs, action=envs.spec().action)
    collector = SampleCollector(envs=envs, policy=policy, n_sample=64, log_every_steps=64, seed=0)
    hooks = [Save(every_iters=2, keep=1)]
    learner = Learner(policy=policy, seed=0, log_every_iters=2, hooks=hooks)
    evaluator = Evaluator(env=ENV, policy=policy, episodes=2, seed=0)
    nodes = {"envs": envs, "collector": collector, "learner": learner, "evaluator": evaluator}
    with flowrl.RunLog(folder, settings={"policy.lr": 1e-3}, **nodes) as log:
        for _ in range(iters):
            learner.train(collector.collect(weights=learner.state()), env_steps=64)
            evaluator.eval(learner.state())
            log.write()
            assert not any(node.ctx.records for node in nodes.values())
        assert log.progress == (64 * iters, log.progress.episodes, iters)
        assert log.progress.episodes > 0
    return nodes


def test_metrics_checkpoints_and_tensorboard_are_written(tmp_path: Path) -> None:
    nodes = train(tmp_path / "run")
    rows = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [
        (r["node"], r["env_steps"], r["train_iters"]) for r in rows if r["node"] == "learner"
    ] == [
        ("learner", 128, 2),
        ("learner", 256, 4),
    ]
    assert {r["role"] for r in rows} == {"collector", "learner", "evaluator"}
    files = {path.stem for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert files == {"best", "last", "iter-4"}  # `keep: 1` has removed iter-2
    [events] = (tmp_path / "run" / "tb").iterdir()
    assert b"learner/loss" in events.read_bytes()
    assert b"policy.lr" in events.read_bytes()
    weights = nodes["learner"].state()
    last, _ = read_acting(tmp_path / "run" / "checkpoints" / "last.safetensors")
    assert all(np.array_equal(last.arrays[name], array) for name, array in weights.arrays.items())
    other = Learner(policy=nodes["learner"].policy, seed=1, hooks=[Save(every_iters=2, keep=1)])
    other.load(tmp_path / "run" / "checkpoints" / "last.safetensors")
    assert other.train_iter == 4


def test_episodes_since_the_last_report_are_logged_at_the_end(tmp_path: Path) -> None:
    envs = SerialEnvManager(env=ENV, count=2, seed=0)
    policy = Dqn(obs=envs.spec().obs, action=envs.spec().action)
    collector = SampleCollector(envs=envs, policy=policy, n_sample=64, log_every_steps=150, seed=0)
    weights = Learner(policy=policy, seed=0).state()
    with flowrl.RunLog(tmp_path / "run", collector=collector) as log:
        for _ in range(4):
            collector.collect(weights=weights)
            log.write()
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["env_steps"] for row in rows] == [192, 256]
    assert rows[1]["episodes"] == log.progress.episodes > rows[0]["episodes"]


def test_a_learning_curve_can_be_drawn_of_it(tmp_path: Path) -> None:
    train(tmp_path / "run", 2)
    curve = read_run(tmp_path / "run").curves["evaluator"]
    assert [steps for steps, _ in curve] == [64, 128]


def test_a_loop_that_raises_is_logged_up_to_there(tmp_path: Path) -> None:
    envs = SerialEnvManager(env=ENV, count=2, seed=0)
    learner = Learner(policy=Dqn(obs=envs.spec().obs, action=envs.spec().action), seed=0)
    learner.ctx.log("before")
    with pytest.raises(ZeroDivisionError), flowrl.RunLog(tmp_path / "run", learner=learner):
        raise ZeroDivisionError
    assert "before" in (tmp_path / "run" / "logs" / "learner.log").read_text()
    assert (tmp_path / "run" / "checkpoints" / "last.safetensors").is_file()


def test_what_is_no_node_and_a_folder_with_a_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="RunLog: learner is 3; expected a node, such as a learner"):
        flowrl.RunLog(tmp_path / "a", learner=3)
    with pytest.raises(TypeError, match="no node is given; write RunLog"):
        flowrl.RunLog(tmp_path / "a")
    train(tmp_path / "run", 1)
    with pytest.raises(UsageError, match="already contains a run; choose another folder"):
        train(tmp_path / "run", 1)
