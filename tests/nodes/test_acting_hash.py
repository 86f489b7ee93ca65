"""The hash of what acting depends on changes with each setting that a step may read, and with no other."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.batch import Column
from flowrl.core.config import param
from flowrl.nodes.acting import Columns, greedy
from flowrl.nodes.acting_hash import acting_hash
from flowrl.nodes.policies.dqn import Dqn


def scaled(head: str, scale: float) -> Callable[..., None]:
    """A step of one's own that holds a number."""

    def step(columns: Columns, obs: Any, acting: Any) -> None:
        columns[head] = columns[head] * scale

    return step


class Holding(Dqn):
    """Acts with a step that holds the value of a setting."""

    class Config(Dqn.Config):
        scale: float = param(1.0, "of the values")

    def collect_steps(self) -> list[Any]:
        return [scaled("q", self.config.scale), greedy("q")]


class Asking(Holding):
    """Acts with a step that asks the policy."""

    def collect_steps(self) -> list[Any]:
        return [self.scale, greedy("q")]

    def scale(self, columns: Columns, obs: Any, acting: Any) -> None:
        columns["q"] = columns["q"] * self.config.scale


class OwnMode(Holding):
    """Makes its modes itself, of what is not known."""

    def collect_mode(self, seed: int) -> Any:
        raise NotImplementedError

    def collect_steps(self) -> list[Any]:
        return [greedy("q")]


class KnownMode(OwnMode):
    """Makes its modes itself, and says of what."""

    def acting_parts(self) -> list[Any]:
        return [self.config.scale]


def hash_of(policy: type[Dqn], explores: bool = True, **params: Any) -> str:
    obs, action = Column("float32", (4,)), Column("int64", n=2)
    return policy(obs=obs, action=action, **params).acting_hash(explores)


def reads(policy: type[Dqn], explores: bool = True, **params: Any) -> bool:
    assert hash_of(policy, explores) == hash_of(policy, explores) != ""
    return hash_of(policy, explores, **params) != hash_of(policy, explores)


@pytest.mark.parametrize("policy", [Holding, Asking, OwnMode, KnownMode])
def test_a_setting_that_a_step_or_mode_may_read_counts(policy: type[Dqn]) -> None:
    assert reads(policy, scale=2.0)
    assert not reads(Dqn, lr=0.5)


@pytest.mark.parametrize("policy", [Holding, KnownMode])
def test_a_setting_that_only_learning_reads_does_not_count(policy: type[Dqn]) -> None:
    assert not reads(policy, lr=0.5, double=False, loss="mse")


@pytest.mark.parametrize("policy", [Asking, OwnMode])
def test_every_setting_counts_where_code_holds_the_policy_or_is_not_known(
    policy: type[Dqn],
) -> None:
    assert reads(policy, lr=0.5)


def test_collecting_and_evaluating_read_other_settings() -> None:
    assert reads(Holding, scale=2.0)
    assert not reads(Holding, explores=False, scale=2.0)


def test_what_holds_objects_without_contents_has_no_hash() -> None:
    assert acting_hash([np.random.default_rng(0)]) == ""
    assert acting_hash([{"a": [np.arange(3), 1.5, None]}]) != ""


def test_arrays_and_functions_of_other_contents_have_other_hashes() -> None:
    parts = [
        np.arange(3),
        np.arange(3.0),
        np.zeros(3),
        scaled("q", 1),
        scaled("q", 2),
        scaled("v", 1),
        greedy("q"),
    ]
    assert len({acting_hash([part]) for part in parts}) == len(parts)
    assert acting_hash([scaled("q", 1)]) == acting_hash([scaled("q", 1)])


class Slotted:
    """Holds a value without a dictionary of attributes."""

    __slots__ = "__value"

    def __init__(self, value: Any) -> None:
        self.__value = value


def test_what_attributes_and_slots_hold_counts() -> None:
    assert acting_hash([Slotted(1)]) == acting_hash([Slotted(1)]) != acting_hash([Slotted(2)])
    assert acting_hash([SimpleNamespace(x=1)]) != acting_hash([SimpleNamespace(x=2)]) != ""


@pytest.mark.parametrize(
    "hiding", [torch.ones(2), random.Random(1), np.random.default_rng(1), {1}, iter([1])]
)
def test_an_object_that_hides_what_it_holds_has_no_hash(hiding: Any) -> None:
    assert acting_hash([hiding]) == acting_hash([SimpleNamespace(held=hiding)]) == ""


def test_a_function_with_a_variable_that_is_not_set_yet_has_no_hash() -> None:
    def step() -> None:
        later()

    assert acting_hash([step]) == ""
    later = step
    assert acting_hash([later]) != ""
