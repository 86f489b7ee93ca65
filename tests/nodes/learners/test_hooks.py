"""Hooks of learners: when they are called, what the built-in ones do, and that they change no bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.core.batch import Array, Batch
from flowrl.core.checkpoint import read_acting
from flowrl.core.config import param
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.core.records import CheckpointRecord, MetricsRecord
from flowrl.core.saved_state import SavedState
from flowrl.nodes.catalogue import CATALOGUE
from flowrl.nodes.learners.hook import Hook
from flowrl.nodes.learners.hooks import AveragedWeights, GradientStatistics, NanGuard, Save
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.policies.dqn import Dqn
from tests.nodes.learn_modes import DISCRETE, OBS, rows, same_bits


class Watch(Hook):
    """Notes every call in a list that all of them share."""

    class Config(Hook.Config):
        name: str = param("", "name")

    calls: list[Any] = []

    def __init__(self, *args: Any, **params: Any) -> None:
        super().__init__(*args, **params)
        self.iters = 0

    def note(self, what: str, learner: Any) -> None:
        self.calls.append((self.config.name, what, learner.train_iter))

    def before_run(self, learner: Any) -> None:
        self.note("before_run", learner)

    def before_iter(self, learner: Any, batch: Batch) -> None:
        self.note("before_iter", learner)

    def after_iter(self, learner: Any, batch: Batch, result: Any) -> None:
        self.iters += len(batch) > 0 and "loss" in result.metrics
        self.note("after_iter", learner)

    def after_run(self, learner: Any) -> None:
        self.note("after_run", learner)


def learner_with(*hooks: Hook, **params: Any) -> Learner:
    return Learner(policy=Dqn(obs=OBS, action=DISCRETE), hooks=list(hooks), **params)


def train(learner: Learner, iters: int, first: int = 0) -> None:
    for seed in range(first, first + iters):
        learner.train(rows(seed=seed))


def records(learner: Learner, kind: type) -> list[Any]:
    return [record for record in learner.ctx.records if isinstance(record, kind)]


def test_hooks_are_called_by_priority_and_then_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(Watch, "calls", calls)
    learner = learner_with(Watch(name="b"), Watch(name="c"), Watch(name="a", priority=30))
    train(learner, 2)
    learner.close()
    learner.close()  # the run has ended once only
    expected = [("before_run", 0)]
    for done in range(2):
        expected += [("before_iter", done), ("after_iter", done + 1)]
    expected.append(("after_run", 2))
    assert calls == [(name, what, n) for what, n in expected for name in "abc"]


def test_the_state_of_hooks_is_saved_with_the_learners(tmp_path: Path) -> None:
    one, two = Watch(name="a"), Watch(name="b")
    learner = learner_with(one, two)
    train(learner, 2)
    two.iters = 7
    learner.save(tmp_path / "c")
    found = [Watch(name="a"), Watch(name="b"), Watch(name="new")]
    learner_with(*found, NanGuard(), begin_with=str(tmp_path / "c"))
    assert [hook.iters for hook in found] == [2, 7, 0]


def test_hooks_change_no_bits() -> None:
    plain = learner_with()
    hooks = [Save(every_iters=2), NanGuard(), AveragedWeights(), GradientStatistics(every_iters=1)]
    hooked = learner_with(*hooks)
    for learner in (plain, hooked):
        train(learner, 6)
    assert same_bits(plain.mode.state_dict(), hooked.mode.state_dict())


def test_save_writes_checkpoints_and_replaces_old_ones(tmp_path: Path) -> None:
    learner = learner_with(Save(every_iters=2, keep=2))
    train(learner, 6)
    found = records(learner, CheckpointRecord)
    assert [(r.name, r.replaces) for r in found] == [
        ("iter-2", "iter--2"),
        ("iter-4", "iter-0"),
        ("iter-6", "iter-2"),
    ]
    counted = learner.state_dict()
    assert same_bits(dict(found[-1].states[""].whole.state_dict()), _as_saved(counted))
    assert (found[-1].states[""].version, found[-1].states[""].clock.total.train_iters) == (6, 6)
    kept = records(trained_with(Save(every_iters=3)), CheckpointRecord)
    assert [(r.name, r.replaces) for r in kept] == [("iter-3", "")]


def _as_saved(state: Any) -> Any:
    from flowrl.core.saved_state import SavedState

    return SavedState.of(state).state_dict()


def trained_with(*hooks: Hook) -> Learner:
    learner = learner_with(*hooks)
    train(learner, 3)
    return learner


def test_the_nan_guard_ends_the_run_in_the_iteration_of_the_nan() -> None:
    learner = learner_with(NanGuard())
    reward = np.full(32, np.nan, np.float32)
    with pytest.raises(ValueError, match="the metric 'loss' is nan in train iteration 1; take a l"):
        learner.train(rows(reward=reward))
    learner = learner_with(NanGuard(every_iters=2))
    train(learner, 1)
    learner.mode.q.optimiser.v[0] = np.nan  # it is in no metric of this iteration
    with pytest.raises(ValueError, match=r"learning has diverged: .*'q/"):
        train(learner, 1)


def test_averaged_weights_follow_the_weights() -> None:
    learner = learner_with(AveragedWeights(decay=0.75))
    before = learner.state().arrays
    np.testing.assert_equal(dict(learner.state("averaged").arrays), dict(before))
    train(learner, 1)
    after, averaged = learner.state().arrays, learner.state("averaged").arrays
    assert averaged.keys() == after.keys()
    for name, array in averaged.items():
        np.testing.assert_allclose(array, 0.75 * before[name] + 0.25 * after[name], rtol=1e-6)
    assert any((averaged[n] != after[n]).any() for n in after)


def test_averaged_weights_without_the_hook_are_refused() -> None:
    schema = {"obs": OBS, "action": DISCRETE}
    config = learner_with().config
    surroundings = Surroundings({"data": schema}, {}, frozenset({"averaged"}))
    with pytest.raises(UnsoundError, match="no hook averages weights; add `hooks: "):
        Learner.describe(config, surroundings)


def refusal(*hooks: Hook, reads_average: bool = False) -> str:
    ports = frozenset({"averaged"} if reads_average else ())
    surroundings = Surroundings({"data": {"obs": OBS, "action": DISCRETE}}, {}, ports)
    with pytest.raises(UnsoundError) as refused:
        Learner.describe(learner_with(*hooks).config, surroundings)
    return f"{refused.value.key}: {refused.value.what}"


def test_averaged_weights_that_nothing_reads_are_refused() -> None:
    found = refusal(NanGuard(), AveragedWeights())
    assert found.startswith("hooks[1]: the hook averaged_weights has no effect: nothing reads")


def test_hooks_that_would_overwrite_each_other_are_refused() -> None:
    both = "hooks[2]: the hooks 1 and 3 of the list both have"
    newest, all_of_them = Save(every_iters=2, keep=1), Save(every_iters=4)
    assert refusal(newest, NanGuard(), all_of_them) == f"{both} checkpoints called iter-N (`name`)"
    statistics = GradientStatistics(every_iters=1), NanGuard(), GradientStatistics(every_iters=2)
    assert refusal(*statistics) == f"{both} metrics of gradients"
    averages = AveragedWeights(), NanGuard(), AveragedWeights(decay=0.5)
    assert refusal(*averages, reads_average=True) == f"{both} the output `averaged`"


def test_two_hooks_save_checkpoints_of_other_names() -> None:
    learner = learner_with(Save(every_iters=2, keep=1), Save(every_iters=4, name="kept"))
    Learner.describe(
        learner.config, Surroundings({"data": {"obs": OBS, "action": DISCRETE}}, {}, frozenset())
    )
    train(learner, 8)
    saved = [(r.name, r.replaces) for r in records(learner, CheckpointRecord)]
    assert [name for name, _ in saved if name.startswith("kept")] == ["kept-4", "kept-8"]
    assert [replaces for name, replaces in saved if name == "iter-8"] == ["iter-6"]


def test_gradient_statistics_are_metrics_of_each_network() -> None:
    learner = learner_with(GradientStatistics(every_iters=2), log_every_iters=2)
    train(learner, 2)
    [metrics] = records(learner, MetricsRecord)
    grad, weight = metrics.values["q_grad_norm"], metrics.values["q_weight_norm"]
    assert grad == pytest.approx(float(learner.mode.q.grads.norm()))
    assert 0 < metrics.values["q_change_share"] < 0.1
    assert weight > 0


def test_wrong_hooks_are_refused_in_words() -> None:
    with pytest.raises(TypeError, match="hooks is the class Save; expected an object of it: Sav"):
        learner_with(Save)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"hooks has 3; expected objects of subclasses of Hook"):
        learner_with(3)  # type: ignore[arg-type]


def test_a_hook_that_cannot_be_saved_is_refused_when_the_learner_is_made() -> None:
    class Noting(Hook):
        def __init__(self, *args: Any, **params: Any) -> None:
            super().__init__(*args, **params)
            self.history: set[float] = set()

    class Returning(Hook):
        def state_dict(self) -> dict[str, Any]:
            return {"seen": {1, 2}}

    with pytest.raises(TypeError, match="history is a set, which a checkpoint cannot hold"):
        learner_with(Noting())
    with pytest.raises(TypeError, match="state/seen is a set, which a checkpoint cannot hold"):
        learner_with(Returning())


class CountsHidden(Hook):
    """Has state in an attribute that looks private."""

    def __init__(self, *args: Any, **params: Any) -> None:
        super().__init__(*args, **params)
        self._seen = 0
        self._rng = np.random.default_rng(3)

    def after_iter(self, learner: Any, batch: Batch, result: Any) -> None:
        self._seen += 1
        learner.add_metrics({"drawn": self._rng.random() + self._seen})


HOOKS: dict[str, Any] = {
    "save": lambda: Save(every_iters=2, keep=1),
    "nan_guard": NanGuard,
    "averaged_weights": AveragedWeights,
    "gradient_statistics": lambda: GradientStatistics(every_iters=2),
}


def test_every_hook_is_tested_here() -> None:
    assert HOOKS.keys() == CATALOGUE["hook"].keys()


@pytest.mark.slow
@pytest.mark.parametrize("make", [*HOOKS.values(), CountsHidden])
def test_a_learner_that_was_loaded_continues_its_hooks(make: Any) -> None:
    """With the same weights, records and states as one that goes on."""
    whole, half, other = (learner_with(make(), log_every_iters=3) for _ in range(3))
    train(whole, 7), train(half, 4)
    other.ctx.clock = half.ctx.clock
    other.load_state_dict(SavedState.of(half.state_dict()).state_dict())
    train(other, 3, first=4)
    assert same_bits(whole.state_dict(), other.state_dict())
    assert [*map(_facts, half.ctx.records), *map(_facts, other.ctx.records)] == [
        *map(_facts, whole.ctx.records)
    ]


def _facts(record: Any) -> Any:
    """The values of metrics, and the name of a checkpoint."""
    return record.values if isinstance(record, MetricsRecord) else (record.name, record.replaces)


def test_an_attribute_that_a_new_hook_would_not_have_is_refused_when_it_is_saved() -> None:
    class OpensLater(Hook):
        def before_run(self, learner: Any) -> None:
            self._file = object()

    class NamesIt(OpensLater):
        unsaved = ("_file",)

    learner = learner_with(OpensLater())
    train(learner, 1)
    with pytest.raises(
        TypeError, match=r"_file is a object, which .* name the attribute in `unsav"
    ):
        learner.state_dict()
    learner = learner_with(NamesIt())
    train(learner, 1)
    learner.state_dict()


def test_a_learner_trains_by_hand_from_a_buffer(tmp_path: Path) -> None:
    class Buffer:
        drawn, told = 0, 0

        def sample(self) -> Batch:
            self.drawn += 1
            return rows(seed=self.drawn)

        def update(self, priorities: Array) -> None:
            assert len(priorities) == 32
            self.told += 1

    buffer, learner = Buffer(), learner_with()
    learner.start(buffer, 5)
    assert (buffer.drawn, buffer.told, learner.train_iter) == (5, 5, 5)
    learner.save(tmp_path / "c")
    assert read_acting(tmp_path / "c")[1]["train_iters"] == 5


class Misspelt(Hook):
    def after_iteration(self, learner: Any, batch: Batch, result: Any) -> None:
        raise AssertionError("it is never called")


class Counting(Hook):
    after_rows = 5  # a setting, not a method

    def after_iter(self, learner: Any, batch: Batch, result: Any) -> None:
        """Do nothing."""


class Idle(Hook):
    pass


def test_a_hook_may_have_attributes_that_are_named_like_methods() -> None:
    Counting.check_methods()


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Misspelt, "Misspelt.after_iteration is never called; did you mean 'after_iter'"),
        (Idle, "Idle has no method that is called; define some of before_run, before_iter"),
    ],
)
def test_a_hook_whose_methods_are_never_called_is_refused(cls: type[Hook], message: str) -> None:
    with pytest.raises(UnsoundError, match=message):
        learner_with(cls())
    config = learner_with().config.model_copy(update={"hooks": [cls()]})
    schema = {"obs": OBS, "action": DISCRETE}
    with pytest.raises(UnsoundError, match=message):
        Learner.describe(config, Surroundings({"data": schema}, {}, frozenset()))
