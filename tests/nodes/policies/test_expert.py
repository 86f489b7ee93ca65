"""The expert policy acts with the weights of a checkpoint, independent of learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.core.checkpoint import checkpoint_bytes
from flowrl.core.facts import UnsoundError
from flowrl.core.state import State
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.expert import Expert
from flowrl.nodes.policies.ppo import Ppo
from flowrl.nodes.policies.r2d2 import R2d2
from tests.nodes.learn_modes import DISCRETE, OBS
from tests.nodes.scripted_envs import ScriptedEnvs

OBSERVED = np.random.default_rng(0).standard_normal((40, *OBS.shape)).astype(np.float32)


def write_checkpoint(path: Path, policy: Any) -> Path:
    state = State(policy.learn_mode(7).weights(), {"epsilon": 0.5})
    path.write_bytes(checkpoint_bytes({"learner": state}, {}))
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "best.safetensors", Dqn(obs=OBS, action=DISCRETE))


def expert(checkpoint: Path, trained: Any = None, **params: Any) -> Expert:
    trained = trained or Dqn(obs=OBS, action=DISCRETE)
    return Expert(obs=OBS, action=DISCRETE, checkpoint=str(checkpoint), trained=trained, **params)


def test_it_acts_as_the_trained_policy_and_ignores_new_weights(checkpoint: Path) -> None:
    plain = Dqn(obs=OBS, action=DISCRETE)
    best, other = plain.eval_mode(0), plain.learn_mode(1)
    best.load(State(plain.learn_mode(7).weights()))
    mode = expert(checkpoint).collect_mode(3)
    mode.load(State(other.weights(), {"epsilon": 1.0}))
    found = mode.forward(OBSERVED)
    assert set(found) == {"action"}
    assert np.array_equal(found["action"], best.forward(OBSERVED)["action"])


def test_it_can_explore_as_when_the_checkpoint_was_saved(checkpoint: Path) -> None:
    plain = Dqn(obs=OBS, action=DISCRETE).collect_mode(3)
    plain.load(State(Dqn(obs=OBS, action=DISCRETE).learn_mode(7).weights(), {"epsilon": 0.5}))
    mode = expert(checkpoint, explore=True).collect_mode(3)
    for _ in range(3):
        assert np.array_equal(mode.forward(OBSERVED)["action"], plain.forward(OBSERVED)["action"])


def test_its_columns_are_those_of_its_mode(tmp_path: Path) -> None:
    ppo = Ppo(obs=OBS, action=DISCRETE)
    checkpoint = write_checkpoint(tmp_path / "ppo.safetensors", ppo)
    assert set(expert(checkpoint, ppo).collect_columns()) == {"action"}
    assert set(expert(checkpoint, ppo, explore=True).collect_columns()) == {"action", "logp"}


def test_it_cannot_learn(checkpoint: Path) -> None:
    with pytest.raises(UnsoundError, match="does not learn"):
        expert(checkpoint).learn_mode(0)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsoundError, match="there is no checkpoint"):
        expert(tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(UnsoundError, match="is not a checkpoint"):
        expert(tmp_path / "bad.safetensors")


@pytest.mark.parametrize(
    ("model", "wrong"),
    [
        ({"hidden": [128, 128]}, r"has unknown \['trunk.2.bias', 'trunk.2.weight'\]"),
        (
            {"hidden": [128, 128, 32]},
            r"'trunk.2.weight' has the shape \(64, 128\), and .* \(32, 128\)",
        ),
    ],
)
def test_a_checkpoint_of_another_network_is_refused(
    model: dict[str, Any], wrong: str, checkpoint: Path
) -> None:
    with pytest.raises(UnsoundError, match=f"does not fit the policy: .*{wrong}"):
        expert(checkpoint, Dqn(obs=OBS, action=DISCRETE, model=Mlp(**model)))


def test_a_checkpoint_that_does_not_fit_is_a_problem_of_the_graph(
    checkpoint: Path, tmp_path: Path
) -> None:
    graph = tmp_path / "g.yaml"
    graph.write_text(
        "extends: cartpole_dqn\nwarmup: null\nnodes:\n  collector:\n    policy:\n      type: expert\n"
        f"      checkpoint: {checkpoint}\n"
    )
    [problem] = flowrl.load(str(graph)).check().problems
    assert str(problem).startswith(f"{graph}:7:7: nodes.collector: '{checkpoint}' does not fit ")


def test_its_unrolls_are_those_of_the_trained_policy(tmp_path: Path) -> None:
    r2d2 = R2d2(obs=OBS, action=DISCRETE, gamma=0.9, burn_in_steps=2)
    own = expert(write_checkpoint(tmp_path / "r2d2.safetensors", r2d2), r2d2)
    assert (own.gamma, own.nstep, own.unroll_steps, own.burn_in_steps) == (0.9, 1, None, 2)


def test_it_cannot_act_for_a_policy_with_more_columns(checkpoint: Path) -> None:
    envs = ScriptedEnvs([[5]])
    spec = envs.spec()
    node = SampleCollector(envs=envs, policy=Ppo(obs=spec.obs, action=spec.action), n_sample=2)
    with pytest.raises(ValueError, match="Expert does not output the column 'logp'"):
        node.reset_policy(expert(checkpoint))


@pytest.mark.slow
def test_an_expert_acts_in_a_warm_up(tmp_path: Path) -> None:
    teacher = flowrl.load("cartpole_dqn").run(train_iters=288, out=tmp_path / "teacher")
    graph = tmp_path / "taught.yaml"
    graph.write_text(
        "extends: cartpole_dqn\n"
        "warmup:\n"
        "  - edges: [collector -> buffer]\n"
        "    steps: 1000\n"
        "    set: {collector.policy: {type: expert, "
        "checkpoint: teacher/checkpoints/best.safetensors}}\n"
    )
    result = flowrl.load(str(graph)).run(train_iters=8, out=tmp_path / "taught")
    assert teacher.status == result.status == "finished"
    assert result.deterministic


def test_a_wrong_setting_of_a_warm_up_is_reported_with_its_location(tmp_path: Path) -> None:
    graph = tmp_path / "taught.yaml"
    expert = "{collector.policy: {type: expert, checkpoint: none.safetensors}}"
    phase = f"{{edges: [collector -> buffer], steps: 9, set: {expert}}}"
    graph.write_text(f"extends: cartpole_dqn\nwarmup:\n  - {phase}\n")
    [problem] = flowrl.load(str(graph)).check().problems
    assert str(problem) == (
        f"{graph}:3:5: warmup: nodes.collector: there is no checkpoint 'none.safetensors'; "
        "a run writes them to its folder `checkpoints`"
    )
