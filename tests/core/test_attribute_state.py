"""The state of nodes and learn modes is found in their attributes; what cannot be saved is refused."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.attribute_state import load_attributes, state_of_attributes
from flowrl.core.batch import Batch
from flowrl.core.config import BaseConfig, param
from flowrl.core.node import Node
from flowrl.core.ports import In
from flowrl.core.saved_state import SavedState, UnsavableStateError
from flowrl.nodes.models.networks import LearnedNumber
from flowrl.nodes.moments import Moments
from flowrl.nodes.policies.dqn import Dqn
from tests.nodes.learn_modes import DISCRETE, OBS, learn, same_bits


class Several:
    """An owner of one attribute of each kind."""

    def __init__(self, seed: int = 0) -> None:
        self.name, self.function = f"several {seed}", draw
        self.kinds = ("a", ("b", str))
        self.count, self.share, self.flag, self.found = seed, 0.5 * seed, bool(seed), None
        self.array = np.full(3, seed, np.float32)
        self.scale = np.float32(seed / 3)
        self.history: list[Any] = [seed, {"returns": (1.5, np.arange(seed))}]
        self.newest = deque([seed], maxlen=2)
        self.table = Batch({"n": np.arange(seed)})
        self.obs = np.zeros(2, [("a", "f4"), ("b", [("c", "i8", (3,))])])
        self.obs["b"]["c"] = seed
        self.dice = random.Random(seed)
        self.mean = torch.full((2,), float(seed))
        self.rng = np.random.default_rng(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.alpha, self.moments = LearnedNumber(seed), Moments()


def draw(owner: Several) -> tuple[Any, ...]:
    return owner.rng.random(), torch.rand(1, generator=owner.generator).item(), owner.dice.random()


def test_every_kind_of_attribute_is_saved_and_loaded() -> None:
    one, other = Several(3), Several(4)
    one.moments.update(np.ones((4, 1)))
    draw(one)
    state = state_of_attributes(one)
    assert state.keys() == {
        "name", "count", "share", "flag", "found", "array", "scale", "history", "newest", "table", "obs", "dice",
        "mean", "rng", "generator", "alpha", "moments",
    }  # fmt: skip
    expected = draw(one)
    one.array += 1  # a saved state is a copy
    one.mean += 1
    one.history[1]["returns"][1][:] = 7
    load_attributes(other, SavedState(*SavedState.of(state).parts()).state_dict())
    assert (other.count, other.share, other.flag, other.found) == (3, 1.5, True, None)
    assert type(other.flag) is bool
    np.testing.assert_array_equal(other.array, 3)
    assert draw(other) == expected
    assert other.name == "several 3"
    assert type(other.scale) is np.float32
    assert other.scale == np.float32(1)
    assert other.history[0] == 3
    assert other.history[1]["returns"][0] == 1.5
    assert isinstance(other.history[1]["returns"], tuple)
    np.testing.assert_array_equal(other.history[1]["returns"][1], [0, 1, 2])
    assert other.table["n"].tolist() == [0, 1, 2]
    assert other.obs.dtype == one.obs.dtype
    assert other.obs["b"]["c"].tolist() == [[3] * 3] * 2
    assert other.newest == deque([3])
    assert other.newest.maxlen == 2
    assert other.mean.tolist() == [3.0, 3.0]
    assert other.alpha.value.item() == 3
    assert other.moments.count == 4


def test_missing_and_unknown_names_are_refused() -> None:
    state = state_of_attributes(Several())
    less = {name: value for name, value in state.items() if name != "rng"}
    with pytest.raises(ValueError, match=r"several: the state lacks \['rng'\]"):
        load_attributes(Several(), less)
    with pytest.raises(ValueError, match=r"several: the state has unknown \['more'\]"):
        load_attributes(Several(), {**state, "more": 1})


def test_attributes_can_be_left_out() -> None:
    owner: Any = Several()
    owner.file = object()
    assert "file" not in state_of_attributes(owner, ["file"])


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([1, object()], "list"),
        ({1: "a"}, "dict"),
        ({1}, "set"),
        ((1, [object()]), "tuple"),
        (np.array(["a"]), "ndarray"),
        (torch.nn.Linear(1, 1).weight, "Parameter"),
        (object(), "object"),
    ],
)
def test_what_cannot_be_saved_is_refused_when_the_learner_is_made(value: Any, kind: str) -> None:
    class Remembering(Dqn):
        class Learn(Dqn.Learn):
            def begin(self) -> None:
                self.history = value

    policy = Remembering(obs=OBS, action=DISCRETE)
    what = (
        rf"\.history is a {kind}, which a checkpoint cannot hold; use numbers, arrays, generators"
    )
    with pytest.raises(TypeError, match=what):
        policy.learn_mode(0)


class Averaging(Dqn):
    """A policy of your own whose learn mode keeps a number and an array, and says nothing of its state."""

    class Learn(Dqn.Learn):
        def begin(self) -> None:
            self.average, self.rewards = 0.0, np.zeros(2)

        def learn(self, b: Any) -> dict[str, Any]:
            self.average = 0.9 * self.average + 0.1 * b.reward.mean().item()
            self.rewards = self.rewards + self.average
            return {**super().learn(b), "average": self.average}


def test_attributes_of_a_learn_mode_of_your_own_are_saved_without_further_ado() -> None:
    policy = Averaging(obs=OBS, action=DISCRETE)
    one, other = policy.learn_mode(0), policy.learn_mode(1)
    learn(one, range(4))
    other.load_state_dict(one.state_dict())
    for mode in (one, other):
        learn(mode, range(4, 8))
    state = one.state_dict()
    assert {"average", "rewards", "iters", "q", "q_target"} <= state.keys()
    assert same_bits(state, other.state_dict())


class MakesLater(Node):
    """Makes or replaces an attribute while it fires."""

    data = In("samples")

    class Config(BaseConfig):
        how: str = param("", "what it does in its first firing")

    def setup(self) -> None:
        self.number, self.mean, self.draws = None, None, np.random.default_rng(0)

    def fire(self, data: Batch) -> None:
        if self.config.how == "number":
            self.number = 3
        elif self.config.how == "object":
            self.mean = Moments()
        elif self.config.how == "new":
            self.seen = 1
        elif self.config.how == "gone":
            del self.number
        elif self.config.how == "generator":
            self.draws = 4


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("object", "mean is an object with a `state_dict`, and was None after `setup`"),
        ("new", "seen is data, and was not there after `setup`"),
        ("gone", "number is not there, and was None after `setup`"),
        ("generator", "draws is data, and was a Generator after `setup`"),
    ],
)
def test_a_state_that_a_new_node_could_not_load_is_refused(how: str, told: str) -> None:
    node = MakesLater(how=how)
    node.state_dict()
    node.fire(Batch({"n": np.arange(1)}))
    with pytest.raises(UnsavableStateError) as raised:
        node.state_dict()
    assert str(raised.value).startswith(f"makeslater.{told}, so a new one could not load it; make")


def test_an_attribute_without_a_value_may_get_data() -> None:
    node, new = MakesLater(how="number"), MakesLater()
    node.fire(Batch({"n": np.arange(1)}))
    new.load_state_dict(node.state_dict())
    assert new.number == 3
