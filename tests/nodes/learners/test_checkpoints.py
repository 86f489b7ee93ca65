"""Checkpoints hold everything: a learner of any algorithm continues from a file with the same bits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flowrl
from flowrl.core.batch import Column
from flowrl.core.checkpoint import checkpoint_bytes, read_acting, read_whole
from flowrl.core.errors import RunError
from flowrl.core.facts import UnsoundError
from flowrl.core.state import Count
from flowrl.graph.bundled import graphs_folder
from flowrl.nodes.learners.hooks import AveragedWeights, GradientStatistics, NanGuard
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.sac import Sac
from tests.nodes.learn_modes import CONTINUOUS, DISCRETE, OBS, rows, same_bits
from tests.nodes.policies.test_every_algorithm import each_algorithm, make, random_batch

# algorithms whose train iterations take several times as long as those of others
SLOW = ("trpo", "acer", "ppg", "r2d2", "redq", "tqc", "qrdqn", "ppo")


CARTPOLE_OBS = Column("float32", (4,))
CARTPOLE: dict[str, Any] = {
    "env": {"id": "CartPole-v1"},
    "nodes": {
        "envs": {"type": "env_manager"},
        "collector": {"type": "sample_collector"},
        "buffer": {"type": "naive_buffer"},
        "learner": {"type": "learner"},
    },
    "edges": ["collector <-> envs", "collector -> buffer -> learner", "learner -> collector"],
}


def learner_of(policy: Any, seed: int = 0, **params: Any) -> Learner:
    hooks = [NanGuard(), AveragedWeights(decay=0.5), GradientStatistics(every_iters=2)]
    return Learner(policy=policy, seed=seed, log_every_iters=4, hooks=hooks, **params)


def dqn(seed: int = 0, action: Column = DISCRETE, **params: Any) -> Learner:
    own = {name: params.pop(name) for name in ("begin_with", "only") if name in params}
    return learner_of(Dqn(obs=OBS, action=action, **params), seed, **own)


def train(learner: Learner, seeds: range) -> None:
    for seed in seeds:
        learner.train(rows(seed=seed), env_steps=10)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint of a dqn learner after 5 train iterations."""
    learner = dqn()
    train(learner, range(5))
    learner.save(tmp_path / "dqn.safetensors")
    return tmp_path / "dqn.safetensors"


@pytest.mark.slow
@each_algorithm
def test_every_algorithm_continues_from_a_file_with_the_same_bits(
    name: str, tmp_path: Path
) -> None:
    schedule = {"start": 1e-3, "end": 1e-4, "train_iters": 6, "shape": "linear"}
    settings = make(name).command(Count())
    policy = make(name, **({"lr": schedule} if "lr" in settings else {}))
    whole, half = learner_of(policy), learner_of(policy)
    for seed in range(6):
        whole.train(random_batch(policy, seed), env_steps=10)
    for seed in range(3):
        half.train(random_batch(policy, seed), env_steps=10)
    half.save(tmp_path / "c")
    torch.manual_seed(9)
    resumed = learner_of(policy, seed=5, begin_with=str(tmp_path / "c"))
    for seed in range(3, 6):
        resumed.train(random_batch(policy, seed), env_steps=10)
    assert same_bits(whole.state_dict(), resumed.state_dict())
    assert whole.state().command == resumed.state().command
    assert same_bits(dict(whole.state().arrays), dict(resumed.state().arrays))
    metrics = [r.values for r in resumed.ctx.records if hasattr(r, "values")]
    assert metrics == [r.values for r in whole.ctx.records if hasattr(r, "values")]


@pytest.mark.exhaustive
@each_algorithm
def test_400_train_iterations_are_200_and_200_more_after_a_file(name: str, tmp_path: Path) -> None:
    """Slow algorithms (see SLOW) do 20 and 20."""
    half = 20 if name in SLOW else 200
    policy = make(name)
    batches = [random_batch(policy, seed) for seed in range(10)]
    whole = learner_of(policy)
    for k in range(2 * half):
        if k == half:
            whole.save(tmp_path / "half")
        whole.train(batches[k % 10], env_steps=10)
    resumed = learner_of(policy, seed=5, begin_with=str(tmp_path / "half"))
    for k in range(half, 2 * half):
        resumed.train(batches[k % 10], env_steps=10)
    assert same_bits(whole.state_dict(), resumed.state_dict())


def test_the_acting_weights_are_read_alone(saved: Path) -> None:
    learner = dqn()
    train(learner, range(5))
    state, info = read_acting(saved)
    assert same_bits(dict(state.arrays), dict(learner.state().arrays))
    assert state.command == learner.state().command
    assert info == {"env_steps": 50, "train_iters": 5, "node": "Learner.weights"}


def test_a_checkpoint_names_the_versions_of_libraries(saved: Path) -> None:
    from safetensors import safe_open

    with safe_open(saved, "numpy") as file:
        text = file.metadata()["flowrl"]
    assert f'"torch": "{torch.__version__.partition("+")[0]}' in text
    assert f'"numpy": "{np.__version__}"' in text
    assert '"flowrl": ' in text


def test_a_learner_can_be_loaded_by_hand(saved: Path) -> None:
    learner, other = dqn(), dqn(seed=3)
    train(learner, range(5))
    train(other, range(7, 9))
    other.load(saved)
    assert same_bits(learner.state_dict(), other.state_dict())


@pytest.mark.parametrize("place", [60, -40, -3000], ids=["metadata", "weights", "state"])
def test_a_damaged_file_is_refused(saved: Path, place: int) -> None:
    content = bytearray(saved.read_bytes())
    content[place] ^= 1
    saved.write_bytes(content)
    with pytest.raises(RunError, match=f"{saved}: is not a checkpoint of flowrl: "):
        read_all(saved)


def read_all(path: Path) -> None:
    read_acting(path)
    read_whole(path, "Learner")


def test_a_truncated_or_foreign_file_is_refused(saved: Path) -> None:
    content = saved.read_bytes()
    for wrong in (content[:-1], b"", b"\x80\x04rubbish", content[:100]):
        saved.write_bytes(wrong)
        with pytest.raises(UnsoundError, match=r"is not a checkpoint of flowrl: .*; give a check"):
            dqn(begin_with=str(saved))


def test_weights_alone_cannot_be_continued(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_bytes(checkpoint_bytes({"evaluator": dqn().state()}, {}))
    with pytest.raises(UnsoundError, match="weights to act with, and no state of a learner"):
        dqn(begin_with=str(path))


def test_a_graph_that_begins_with_weights_alone_is_refused() -> None:
    bundled = str(graphs_folder() / "checkpoints/cartpole_dqn.safetensors")
    for changes in ({}, {"learner.only": ["q"]}):
        graph = flowrl.load("cartpole_dqn", {"learner.begin_with": bundled, **changes})
        [problem] = graph.check().problems
        assert f"nodes.learner: '{bundled}' has weights to act with, and no state" in str(problem)


def test_a_checkpoint_of_another_algorithm_or_model_is_refused(saved: Path) -> None:
    with pytest.raises(
        UnsoundError, match=r"does not fit the policy: sac: the state lacks .*`only`"
    ):
        learner_of(Sac(obs=OBS, action=CONTINUOUS), begin_with=str(saved))
    with pytest.raises(UnsoundError, match=r"does not fit the policy: .*is it that of another mod"):
        dqn(model=Mlp(hidden=[7]), begin_with=str(saved))


def test_networks_can_be_taken_alone_and_what_does_not_fit_is_listed(saved: Path) -> None:
    learner = dqn()
    train(learner, range(5))
    three = dqn(seed=2, action=Column("int64", n=3), begin_with=str(saved), only=["q"])
    lines = [record for record in three.ctx.records if isinstance(record, str)]
    assert lines[0] == f"begins with q of {saved}"
    assert any("in the checkpoint, and (3," in line for line in lines[1:]), lines
    old, new = learner.mode.q.weights(), three.mode.q.weights()
    equal = [n for n in new if old[n].shape == new[n].shape and (old[n] == new[n]).all()]
    assert equal
    assert len(equal) + len(lines) - 1 == len(new)
    assert same_bits(new, three.mode.q_target.weights())
    assert three.train_iter == 0
    assert three.mode.q.optimiser.steps == 0


def test_networks_that_do_not_exist_are_refused(saved: Path) -> None:
    with pytest.raises(UnsoundError, match=r"the policy has no network 'actor'.*q"):
        dqn(begin_with=str(saved), only=["actor"])
    with pytest.raises(UnsoundError, match=r"the checkpoint has no network 'critic'.*q"):
        learner_of(Sac(obs=OBS, action=CONTINUOUS), begin_with=str(saved), only=["critic"])
    params: dict[str, Any] = {"model": Mlp(hidden=[3]), "dueling": False}
    with pytest.raises(UnsoundError, match="nothing of the network 'q' fits: q/"):
        dqn(action=Column("int64", n=5), **params, begin_with=str(saved), only=["q"])


@pytest.mark.parametrize(
    ("policy", "learner", "message"),
    [
        (
            {"type": "dqn", "model": {"type": "mlp", "hidden": [7]}},
            {},
            "is it that of another model?",
        ),
        ({"type": "c51"}, {}, "is it that of another model?"),
        (
            {"type": "discrete_sac"},
            {},
            "it has the networks q, and the policy has actor, critic",
        ),
        ({"type": "dqn"}, {"only": ["actor"]}, "the policy has no network 'actor'; known: q"),
        ({"type": "discrete_sac"}, {"only": ["actor"]}, "the checkpoint has no network 'actor'"),
        (
            {"type": "dqn", "model": {"type": "mlp", "hidden": [7]}, "dueling": False},
            {"only": ["q"]},
            "nothing of the network 'q' fits: q/",
        ),
    ],
)
def test_check_refuses_a_checkpoint_of_another_policy(
    policy: dict[str, Any], learner: dict[str, Any], message: str, tmp_path: Path
) -> None:
    trained = Dqn(obs=CARTPOLE_OBS, action=DISCRETE)
    Learner(policy=trained, seed=0).save(tmp_path / "dqn.safetensors")
    given = {"begin_with": str(tmp_path / "dqn.safetensors"), **learner}
    graph = {**CARTPOLE, "policy": policy}
    nodes = {**CARTPOLE["nodes"], "learner": {"type": "learner", **given}}
    [problem] = flowrl.load({**graph, "nodes": nodes}).check().problems
    assert message in f"{problem.what}; {problem.hint}"


@each_algorithm
def test_shapes_that_are_known_without_torch_are_those_of_the_networks(name: str) -> None:
    policy = make(name)
    mode = policy.learn_mode(seed=0)
    for key, net in policy.nets.items():
        weights = getattr(mode, key).weights()
        known = net.parameter_shapes()
        assert known == {n: weights[n].shape for n in known}
        assert known.keys() in (set(), weights.keys())


def test_check_accepts_a_checkpoint_of_the_policy(tmp_path: Path) -> None:
    trained = Dqn(obs=CARTPOLE_OBS, action=DISCRETE)
    Learner(policy=trained, seed=0).save(tmp_path / "dqn.safetensors")
    for only in (None, ["q"]):
        begin = {"begin_with": str(tmp_path / "dqn.safetensors"), "only": only}
        nodes = {**CARTPOLE["nodes"], "learner": {"type": "learner", **begin}}
        graph = {**CARTPOLE, "policy": "dqn", "nodes": nodes}
        assert flowrl.load(graph).check().problems == []


def test_check_refuses_a_checkpoint_that_is_not_there() -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        (
            {"begin_with": "none.safetensors"},
            "there is no checkpoint '.*none.safetensors'; a run wr",
        ),
        (
            {"only": ["q"]},
            "`only` names networks of a checkpoint, and there is no `begin_with`; give",
        ),
    )
    for sets, message in cases:
        given = {f"learner.{name}": value for name, value in sets.items()}
        [problem] = flowrl.load("cartpole_dqn", given).check().problems
        assert re.search(message, str(problem))
