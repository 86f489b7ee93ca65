"""The search for settings that change nothing finds them, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pytest

from flowrl.core.config import Config, param
from flowrl.nodes.schedules import NumberSchedule, Scheduled, scheduled
from flowrl.nodes.targets import Target, TargetRule, follows
from tests.nodes.settings_without_effect import Finding, Setting, examine, settings_of


class Settings(Config):
    """Those of a policy that learns nothing."""

    lr: float = param(0.1, "counts")
    ignored: float = param(0.5, "does not count")
    steps: int = param(4, "counts from 6 on")
    refused: bool = param(False, "is refused")
    fails: Literal["never", "always"] = param("never", "whether it fails")
    name: str = param("x", "no other values are known")


class FakePolicy:
    """Its results are some of its settings."""

    def settings(self) -> list[Setting]:
        config = Settings()
        fields = Settings.model_fields.items()
        return [Setting(f"policy.{n}", getattr(config, n), field) for n, field in fields]

    def results(self, changes: Mapping[str, Any]) -> Any:
        c = Settings(**{name.removeprefix("policy."): v for name, v in changes.items()})
        if c.refused:
            return None
        if c.fails == "always":
            raise ValueError("as told")
        return c.lr, max(6, c.steps)


def found(only: tuple[str, ...] = ()) -> dict[str, Finding]:
    return {f.path: f for f in examine(FakePolicy(), only)}


def test_settings_are_told_apart_by_their_effect() -> None:
    outcomes = {path: f.outcome for path, f in found().items()}
    assert outcomes == {
        "policy.lr": "effect",
        "policy.ignored": "none",
        "policy.steps": "effect",
        "policy.refused": "refused",
        "policy.fails": "fails",
    }


def test_values_are_tried_until_one_has_an_effect() -> None:
    findings = found()
    assert findings["policy.steps"].tried == [9]  # 5 is like 4
    assert findings["policy.ignored"].tried == [0.25, 0.8, 1.5]
    assert findings["policy.fails"].error == "ValueError: as told"


def test_some_settings_are_chosen_by_the_begin_of_their_paths() -> None:
    assert list(found(("policy.lr", "policy.ste"))) == ["policy.lr"]
    assert len(found(("policy",))) == 5
    assert not found(("buffer",))


class Others(Config):
    """Parameters of which other values are made in another way."""

    limit: float | None = param(None, "a limit")
    widths: list[int] = param([8, 16], "widths")
    target: TargetRule = follows(tau=0.5)
    epsilon: Scheduled = scheduled({"start": 1.0, "end": 0.5, "env_steps": 10}, "share")
    on: bool = param(True, "a switch")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("limit", [0.3, 1.5, 1e-6]),
        ("widths", [[8, 24], [16]]),
        ("on", [False]),
        ("target", [{"every_iters": None, "tau": 0.3}, {"every_iters": 2, "tau": None}]),
        ("epsilon", [{"start": 0.5, "end": 0.25}]),
    ],
)
def test_other_values_are_of_the_type_of_the_setting(name: str, values: list[Any]) -> None:
    value = getattr(Others(), name)
    assert isinstance(value, Target | NumberSchedule | bool | list | None)
    assert Setting(name, value, Others.model_fields[name]).other_values() == values


def test_the_settings_of_a_graph_are_those_of_nodes_parts_and_sections() -> None:
    import flowrl

    graph = flowrl.load("cartpole_dqn").check().graph
    values = {s.path: s.value for s in settings_of(graph)}
    assert values["buffer.batch_size"] == graph.nodes["buffer"].config.batch_size
    assert values["policy.nstep"] == 10
    assert values["policy.model.hidden"] == [128, 128]
    assert "env.max_episode_steps" in values
    assert not any(path.startswith(("learner.policy", "evaluator.env.")) for path in values)
    of_nodes = {s.path for s in settings_of(graph, each_node=True)}
    assert {"learner.policy.lr", "collector.policy.model.hidden", "envs.env.id"} <= of_nodes
    assert not any(path.startswith(("policy.", "env.")) for path in of_nodes)
