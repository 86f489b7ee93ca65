"""Rows get the actions that an expert takes there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.core.batch import Array, Batch, Column
from flowrl.core.config import PartSpec
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.core.records import MetricsRecord
from flowrl.graph.bundled import graphs_folder
from flowrl.nodes.labels.expert_labels import ExpertLabels
from flowrl.nodes.observations import NestedColumns, columns_under
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.expert import Expert
from flowrl.nodes.policies.sac import Sac
from flowrl.nodes.policy import Policy
from tests.nodes.learn_modes import rows

SCHEMA = {**rows().schema, "action": Column("int64", n=2)}


class Leans(Policy):
    """Pushes in the direction of the first number of the observation."""

    acts_without_weights = True

    def eval_mode(self, seed: int) -> Any:
        return LeansMode()


class LeansMode:
    def forward(self, obs: Array) -> dict[str, Array]:
        values = obs["a"] if obs.dtype.names else obs
        return {"action": (values[:, 0] > 0).astype(np.int64)}


def make(schema: Any = SCHEMA, **params: Any) -> ExpertLabels:
    config = ExpertLabels.Config(policy=PartSpec("leans", Leans, Leans.Config()), **params)
    return ExpertLabels(config=config, context=Context("labels", inputs={"data": schema}))


def describe(policy: Any, schema: Any = SCHEMA) -> Any:
    config = ExpertLabels.Config(policy=policy)
    return ExpertLabels.describe(config, Surroundings({"data": schema}, {}, frozenset({"out"})))


def test_rows_get_the_experts_actions_and_nothing_else_changes() -> None:
    batch = rows()
    found = make().fire(batch)
    np.testing.assert_array_equal(found["action"], batch["obs"][:, 0] > 0)
    for name in set(batch) - {"action"}:
        assert found[name] is batch[name]
    assert len(make().fire(batch.take(slice(0, 0)))) == 0


def test_nested_observations_are_put_together() -> None:
    obs = NestedColumns({"a": Column("float32", (2,)), "b": Column("int64", n=3)})
    schema = {**columns_under("obs", obs), "action": Column("int64", n=2)}
    a = np.random.default_rng(0).standard_normal((9, 2)).astype(np.float32)
    columns = {"obs/a": a, "obs/b": np.zeros(9, np.int64), "action": np.zeros(9, np.int64)}
    found = make(schema).fire(Batch(columns))
    np.testing.assert_array_equal(found["action"], a[:, 0] > 0)


def test_the_agreement_of_agent_and_expert_is_reported() -> None:
    node, batch = make(log_every_tokens=2), rows()
    for _ in range(2):
        node.fire(batch)
    [report] = [r.values for r in node.ctx.records if isinstance(r, MetricsRecord)]
    assert report["agreement"] == pytest.approx(
        (batch["action"] == (batch["obs"][:, 0] > 0)).mean()
    )


def test_a_loaded_node_reports_at_the_same_tokens() -> None:
    node, other = make(), make()
    node.fire(rows())
    other.load_state_dict(node.state_dict())
    assert other.tokens == 1


def test_what_cannot_label_is_refused() -> None:
    dqn = PartSpec("dqn", Dqn, Dqn.Config())
    with pytest.raises(UnsoundError, match="needs a policy with weights of its own; dqn has none"):
        describe(dqn)
    leans = PartSpec("leans", Leans, Leans.Config())
    with pytest.raises(UnsoundError, match="the data has no column 'action'"):
        describe(leans, {"obs": SCHEMA["obs"]})
    with pytest.raises(UnsoundError, match="the rows are unrolls"):
        describe(leans, {**SCHEMA, "reward": Column("float32", (4,))})


@pytest.mark.slow
def test_the_expert_of_a_checkpoint_labels_as_it_acts(tmp_path: Path) -> None:
    flowrl.load("cartpole_dqn", {"evaluator.episodes": 1}).run(train_iters=96, out=tmp_path / "run")
    checkpoint = str(next((tmp_path / "run" / "checkpoints").iterdir()))
    trained = flowrl.load("cartpole_dqn").check().graph.nodes["learner"].config.policy
    expert = PartSpec("expert", Expert, Expert.Config(checkpoint=checkpoint, trained=trained))
    config = ExpertLabels.Config(policy=expert)
    node = ExpertLabels(config=config, context=Context("labels", inputs={"data": SCHEMA}))
    batch, agent = rows(), flowrl.policy(tmp_path / "run")
    np.testing.assert_array_equal(node.fire(batch)["action"], agent.act(batch["obs"]))


def test_the_page_shows_the_bundled_graph() -> None:
    page = (Path(__file__).parents[3] / "docs" / "rewards.md").read_text(encoding="utf-8")
    [shown] = [b for b in re.findall(r"```yaml\n(.*?)```", page, re.S) if "expert_labels" in b]
    assert (graphs_folder() / "cartpole_dagger.yaml").read_text(encoding="utf-8").endswith(shown)


@pytest.mark.parametrize("graph", ["cartpole_ppo", "cartpole_dqn"])
def test_an_expert_gives_the_scores_of_all_actions_on_request(graph: str) -> None:
    policy = flowrl.load(graph).check().graph.nodes["learner"].config.policy
    checkpoint = str(graphs_folder() / f"checkpoints/{graph}.safetensors")
    params = {"checkpoint": checkpoint, "trained": policy}
    config = ExpertLabels.Config(
        policy=PartSpec("expert", Expert, Expert.Config(**params, scores=True))
    )
    schema = {**SCHEMA, "obs": Column("float32", (4,))}
    described = ExpertLabels.describe(config, Surroundings({"data": schema}, {}, frozenset()))
    assert described.outs["out"]["scores"] == Column("float32", (2,))
    node = ExpertLabels(config=config, context=Context("labels", inputs={"data": schema}))
    obs = np.random.default_rng(0).uniform(-0.1, 0.1, (50, 4)).astype(np.float32)
    batch = Batch({"obs": obs, "action": np.zeros(50, np.int64)})
    found = node.fire(batch)
    expert = flowrl.policy(graph)
    assert found["scores"].shape == (50, 2)
    np.testing.assert_array_equal(found["scores"].argmax(1), found["action"])
    assert found["action"].tolist() == [int(expert.act(one)) for one in obs]
    empty = node.fire(batch.take(slice(0, 0)))
    assert dict(empty.schema)["scores"] == Column("float32", (2,))


@pytest.mark.slow
def test_a_collector_with_an_expert_gives_its_scores_too(tmp_path: Path) -> None:
    checkpoint = str(graphs_folder() / "checkpoints/cartpole_ppo.safetensors")
    expert = {"type": "expert", "checkpoint": checkpoint, "trained": "ppo", "scores": True}
    graph = {
        "extends": "cartpole_dqn",
        "policy": {"type": "distillation"},
        "nodes": {"collector": {"policy": expert}},
        "warmup": [{"edges": ["collector -> buffer"], "rounds": 2}],
    }
    assert flowrl.load(graph).run(train_iters=16, out=tmp_path / "r").train_iters == 16


def test_scores_that_do_not_exist_are_refused() -> None:
    real = Column("float32", (1,), low=-1.0, high=1.0)
    checkpoint = str(graphs_folder() / "checkpoints/pendulum_sac.safetensors")
    trained = PartSpec("sac", Sac, Sac.Config())
    spec = PartSpec(
        "expert", Expert, Expert.Config(checkpoint=checkpoint, trained=trained, scores=True)
    )
    with pytest.raises(UnsoundError, match="sac does not choose one of n actions by scores"):
        spec.make(obs=Column("float32", (3,)), action=real)
