"""The learner: its iterations, state, command, metrics and priorities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowrl.core.batch import Batch, Column
from flowrl.core.config import PartSpec
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.core.node import Load
from flowrl.core.state import Clock, Count, State
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.policies.dqn import Dqn
from tests.nodes.learn_modes import DISCRETE, OBS, rows
from tests.nodes.toy_policies import Toy

BY_RETURN = {"by": "return_mean", "points": [[0, 1.0], [100, 0.0]]}

SCHEMA = {
    "obs": Column("float32", (2,)),
    "action": Column("int64", n=3),
    "reward": Column("float32"),
}


def batch(rows: int = 4) -> Batch:
    reward = np.arange(rows, dtype=np.float32)
    return Batch({"obs": np.zeros((rows, 2), np.float32), "reward": reward})


def spec(**params: Any) -> PartSpec:
    return PartSpec("toy", Toy, Toy.Config(**params))


def learner(context: Context | None = None, **params: Any) -> Learner:
    toy = {name: params.pop(name) for name in ("priorities",) if name in params}
    context = context or Context("learner", inputs={"data": SCHEMA})
    return Learner(config=Learner.Config(policy=spec(**toy), **params), context=context)


def describe(schema: Any) -> Any:
    return Learner.describe(
        Learner.Config(policy=spec()), Surroundings({"data": schema}, {}, frozenset({"weights"}))
    )


def test_the_learner_needs_the_columns_that_its_policy_reads() -> None:
    facts = describe(SCHEMA)
    assert facts.needs == {"data": {"obs": SCHEMA["obs"], "reward": Column("float32")}}
    assert facts.on_policy is False
    assert facts.outs == {"priorities": {"priority": Column("float32")}}


@pytest.mark.parametrize(
    ("schema", "missing"),
    [(None, "obs"), ({}, "obs"), ({"obs": Column("float32")}, "action")],
    ids=["no table", "no columns", "no action"],
)
def test_data_without_observations_or_actions_is_unsound(schema: Any, missing: str) -> None:
    with pytest.raises(
        UnsoundError, match=f"no column '{missing}'; connect a collector or a buffer"
    ):
        describe(schema)


def test_the_policy_has_the_described_columns() -> None:
    assert learner().policy.action.n == 3


def test_the_models_seed_depends_on_the_nodes_name() -> None:
    contexts = [Context("learner", seed=s, inputs={"data": SCHEMA}) for s in (0, 0, 1)]
    a, b, c = (learner(context).mode.seed for context in contexts)
    assert a == b != c


def test_each_firing_is_one_train_iteration_and_a_new_version() -> None:
    node = learner()
    weights = [node.state("weights").arrays["w"].tolist()]
    for _ in range(3):
        assert node.fire(batch()) is None
        weights.append(node.state("weights").arrays["w"].tolist())
    assert weights == [[0], [1], [2], [3]]


def test_the_command_depends_on_progress() -> None:
    node = learner()
    node.ctx.clock = Clock({"collector": Count(env_steps=96), "learner": Count(train_iters=5)})
    assert node.state().command == {"iters": 5.0, "steps": 96.0}
    node.fire(batch())
    assert node.mode.commands == [{"iters": 5.0, "steps": 96.0}]


def test_the_command_depends_on_the_newest_evaluation_that_the_learner_has_seen() -> None:
    policy = Dqn(obs=OBS, action=DISCRETE, epsilon=BY_RETURN)
    node, other = Learner(policy=policy, seed=0), Learner(policy=policy, seed=1)
    evaluations = [State({}), State({}, {"return_mean": 50.0}), None, State({})]
    found = []
    for evaluation in evaluations:
        node.train(rows(), found=evaluation)
        found.append(node.state().command["epsilon"])
    assert found == [1.0, 0.5, 0.5, 0.5]
    other.load_state_dict(node.state_dict())
    assert other.command == node.command


def test_a_policy_with_the_old_form_of_command_is_refused_when_it_is_defined() -> None:
    with pytest.raises(
        TypeError, match=r"Old\.command takes \(progress\); it must take \(progress"
    ):

        class Old(Dqn):
            def command(self, progress: Count) -> dict[str, float]:  # type: ignore[override]
                return {}


def test_metrics_are_means_since_the_last_report() -> None:
    node = learner(log_every_iters=3)
    for _ in range(7):
        node.fire(batch())
    assert [record.values["loss"] for record in node.ctx.records] == [2.0, 5.0]


def test_the_rewards_that_are_learned_from_are_a_metric() -> None:
    node = learner(log_every_iters=2)
    for reward in (1.0, 4.0):
        node.fire(batch(2).replace(reward=np.array([reward, 2 * reward], np.float32)))
    (record,) = node.ctx.records
    assert record.values["learned_reward_mean"] == 3.75


def test_weights_with_nan_end_the_run_at_the_next_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = learner(log_every_iters=2)
    monkeypatch.setattr(node.mode, "weights", lambda: {"w": np.array([1.0, np.nan])})
    node.fire(batch())
    with pytest.raises(ValueError, match=r"diverged: 1 of 1 weights hold nan \(the first: 'w'\)"):
        node.fire(batch())


def test_priorities_have_a_row_for_each_row() -> None:
    node = learner(priorities=True)
    given = node.fire(batch(3))
    assert given["priority"].tolist() == [0.0, 1.0, 2.0]
    assert given.schema == {"priority": Column("float32")}


def test_train_counts_iterations_and_env_steps() -> None:
    policy = Toy(obs=SCHEMA["obs"], action=SCHEMA["action"])
    node = Learner(policy=policy)
    for _ in range(4):
        node.train(batch(), env_steps=10)
    assert node.train_iter == 4
    assert node.state().command == {"iters": 4.0, "steps": 40.0}


def test_threads_are_the_remedy_where_long_iterations_leave_cores_idle() -> None:
    config = Learner.Config(policy=spec())
    told = Learner.remedy(config, Load(each_s=0.5, torch_threads=1, idle_cores=1))
    assert told == (
        "1 core was idle: with images or wide layers, try `torch_threads: 2` for this node"
    )
    assert "3 cores were idle" in Learner.remedy(config, Load(0.5, 2, 3))
    assert "`torch_threads: 5`" in Learner.remedy(config, Load(0.5, 2, 3))
    assert Learner.remedy(config, Load(each_s=0.5, idle_cores=0)) == ""
    assert Learner.remedy(config, Load(each_s=0.001, idle_cores=1)) == ""  # more would be slower
