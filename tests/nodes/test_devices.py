"""A learner and what acts compute on any device. The device `meta` stands for others: it has shapes and no numbers.

Operations that mix it with the CPU raise errors there, and so does what reads numbers, as `.numpy()` and `float()` do.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flowrl
from flowrl.core.batch import Column
from flowrl.core.facts import UnsoundError
from flowrl.core.state import Count
from flowrl.nodes import Cnn, Dqn, Learner, Mlp, devices
from flowrl.nodes.compute import Compute
from flowrl.nodes.policy import use_device
from tests.nodes.learn_modes import DISCRETE, OBS, rows, same_bits
from tests.nodes.policies.test_every_algorithm import (
    ALGORITHMS,
    IMAGE,
    MASKED,
    NESTED,
    act,
    each_algorithm,
    make,
    model_fields,
    obs_rows,
    random_batch,
    small_models,
)

META = Compute(device="meta")
FLAT = Column("float32", (3,))


@pytest.fixture
def copied_back(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what is copied back from the device. All its numbers are one."""
    shapes: list[tuple[int, ...]] = []

    def copy(values: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(values.shape))
        return torch.ones_like(values, device="cpu")

    monkeypatch.setattr(devices, "copy_to_cpu", copy)
    return shapes


def learn_on_meta(policy: Any) -> Any:
    mode = policy.learn_mode(0, META)
    mode.forward(random_batch(policy), policy.command(Count()))
    modules = [network.module for network in mode._networks()]
    assert {p.device for module in modules for p in module.parameters()} == {torch.device("meta")}
    return mode


@each_algorithm
def test_every_algorithm_learns_on_another_device(name: str, copied_back: Any) -> None:
    policy = make(name)
    mode = learn_on_meta(policy)
    assert mode.weights().keys() == policy.learn_mode(0).weights().keys()
    mode.load_state_dict(mode.state_dict())


@pytest.mark.parametrize("name", ["dqn", "c51", "ppo", "sac"])
def test_nested_observations_and_masks_are_learned_from_there(name: str, copied_back: Any) -> None:
    learn_on_meta(make(name, obs=NESTED))
    if name != "sac":
        learn_on_meta(make(name, obs=MASKED))


@pytest.mark.parametrize("name", ["dqn", "ppo", "sac"])
def test_normalised_observations_and_images_are_learned_from_there(
    name: str, copied_back: Any
) -> None:
    learn_on_meta(make(name, **small_models(name, normalise_obs=True)))
    small = Cnn(channels=[4], kernels=[8], strides=[4], hidden=[8])
    learn_on_meta(make(name, obs=IMAGE, **dict.fromkeys(model_fields(ALGORITHMS[name]), small)))


@each_algorithm
def test_every_algorithm_acts_on_another_device(name: str, copied_back: Any) -> None:
    policy = make(name)
    for mode in (policy.collect_mode(0), policy.eval_mode(0)):
        use_device(mode, "meta")
        mode.settings = policy.command(Count())  # type: ignore[attr-defined]
        assert len(act(policy, mode, obs_rows(FLAT, 5))["action"]) == 5
    assert copied_back


def test_a_train_iteration_of_dqn_copies_back_only_priorities(copied_back: Any) -> None:
    mode = learn_on_meta(make("dqn"))
    copied_back.clear()
    mode.forward(random_batch(mode.policy), mode.policy.command(Count()))
    assert copied_back == [(48,)]


def test_a_state_is_bound_to_no_device() -> None:
    """Generators are those of the CPU, whatever the device is."""
    policy = Dqn(obs=OBS, action=DISCRETE)
    one, other = policy.learn_mode(0, Compute(device="cpu")), policy.learn_mode(0)
    assert same_bits(one.state_dict(), other.state_dict())


# What a graph says


@pytest.mark.parametrize("nodes", [["learner"], ["collector", "evaluator"]])
def test_a_device_that_is_not_there_is_a_problem_of_the_graph(nodes: list[str]) -> None:
    graph = {"extends": "cartpole_dqn", "nodes": {n: {"device": "cuda"} for n in nodes}}
    problems = [str(p) for p in flowrl.load(graph).check().problems]
    assert len(problems) == len(nodes)
    for name, problem in zip(nodes, problems, strict=True):
        assert f"nodes.{name}: device 'cuda': torch " in problem
        assert "such as `device: auto`" in problem


@pytest.mark.parametrize("device", ["cuda:x", "gpu", "meta", "CPU", 0])
def test_other_words_are_refused(device: Any) -> None:
    graph = {"extends": "cartpole_dqn", "nodes": {"learner": {"device": device}}}
    [problem] = flowrl.load(graph).check().problems
    assert "device is" in str(problem)


def test_devices_beyond_those_of_the_machine_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_count_cuda", lambda: 2)
    monkeypatch.setattr(devices, "_has_mps", lambda: False)
    found = [devices.available_device(word) for word in ("cpu", "cuda", "cuda:1", "auto")]
    assert found == ["cpu", "cuda", "cuda:1", "cuda"]
    with pytest.raises(UnsoundError, match="the CUDA devices of this machine are cuda:0 to cuda:1"):
        devices.available_device("cuda:2")
    with pytest.raises(UnsoundError, match="no Metal device"):
        devices.available_device("mps")
    monkeypatch.setattr(devices, "_count_cuda", lambda: 0)
    monkeypatch.setattr(devices, "_has_mps", lambda: True)
    assert [devices.available_device(word) for word in ("mps", "auto")] == ["mps", "mps"]


def test_auto_is_decided_before_the_run_and_recorded(tmp_path: Path) -> None:
    graph = flowrl.load("cartpole_dqn", {"learner.device": "auto"})
    checked = graph.check()
    assert checked.graph.nodes["learner"].config.device == "cpu"
    assert checked.facts["learner"].notes == ("device auto is cpu here",)
    graph.run(out=tmp_path / "r", train_iters=2, quiet=True)
    assert "    device: cpu\n" in (tmp_path / "r" / "graph.yaml").read_text()
    facts = json.loads((tmp_path / "r" / "environment.json").read_text())
    assert facts["resolved"] == {"learner.device": "cpu"}


def test_a_run_on_a_device_can_be_evaluated_where_that_device_is_not(tmp_path: Path) -> None:
    flowrl.load("cartpole_dqn").run(out=tmp_path / "r", train_iters=2, quiet=True)
    path = tmp_path / "r" / "graph.yaml"
    text = path.read_text()
    learner = text.index("learner:\n")
    path.write_text(text[:learner] + text[learner:].replace("device: cpu", "device: cuda", 1))
    assert "device: cuda" in path.read_text()
    obs = np.zeros(4, np.float32)
    assert flowrl.policy(tmp_path / "r", "last").act(obs) in (0, 1)


def test_an_expert_keeps_its_weights_on_another_device(tmp_path: Path) -> None:
    from flowrl.nodes import Expert

    policy = Dqn(obs=OBS, action=DISCRETE, model=Mlp(hidden=[8]))
    Learner(policy=policy).save(tmp_path / "w.safetensors")
    expert = Expert(
        obs=OBS, action=DISCRETE, checkpoint=str(tmp_path / "w.safetensors"), trained=policy
    )
    mode: Any = expert.eval_mode(0)
    before = mode.forward(rows()["obs"])["action"]
    mode.use_device("cpu")
    assert np.array_equal(mode.forward(rows()["obs"])["action"], before)
