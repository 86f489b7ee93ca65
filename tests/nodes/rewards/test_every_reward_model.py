"""What every reward model of the catalogue must do. A model's own tests hold its mathematics only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowrl.core.batch import Batch, Column, Schema
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.core.records import MetricsRecord
from flowrl.core.state import Clock, Count
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.recurrent import Gru
from tests.nodes.learn_modes import poison, same_bits
from tests.nodes.rewards.reward_models import (
    IMAGE,
    IMITATING,
    LEARNED,
    NESTED,
    OBS,
    REAL,
    REWARD_MODELS,
    ROWS,
    SETTINGS,
    SEVERAL,
    facts,
    fire,
    make,
    rows,
    schema_of,
)

each_model = pytest.mark.parametrize("name", REWARD_MODELS)
each_learned = pytest.mark.parametrize("name", LEARNED)
each_imitating = pytest.mark.parametrize("name", IMITATING)


def run(node: Any, seeds: range, schema: Schema | None = None) -> list[Batch]:
    """Fire a node on random rows, the first time with rows of an expert."""
    expert = rows(schema, seed=1000)
    return [fire(node, rows(schema, seed), expert if seed == 0 else None) for seed in seeds]


@each_model
def test_the_reward_is_the_weighted_sum_of_both_parts(name: str) -> None:
    node = make(name, weight=0.5, reward_weight=2.0, parts=True)
    for seed, found in enumerate(run(node, range(3))):
        given = rows(seed=seed)
        np.testing.assert_array_equal(found["reward/env"], given["reward"])
        bonus = found[node.part_column()]
        assert np.isfinite(bonus).all()
        np.testing.assert_allclose(found["reward"], 2 * given["reward"] + 0.5 * bonus, rtol=1e-5)
        assert found["reward"].dtype == np.float32
        for column in set(given) - {"reward"}:
            assert found[column].tobytes() == given[column].tobytes()


@each_model
def test_the_columns_are_those_that_were_described(name: str) -> None:
    schema = schema_of()
    for parts in (False, True):
        found = fire(make(name, parts=parts), rows(), rows(seed=9))
        described = facts(name, schema, parts=parts).outs["out"]
        assert dict(found.schema) == dict(described)


@each_model
def test_weights_follow_their_schedules(name: str) -> None:
    schedule = {"start": 1.0, "end": 0.0, "env_steps": 100, "shape": "linear"}
    node = make(name, weight=schedule, reward_weight=1.0)
    batch = rows()
    assert (fire(node, batch, rows(seed=9))["reward"] != batch["reward"]).any()
    node.ctx.clock = Clock({"collector": Count(env_steps=100)})
    np.testing.assert_array_equal(fire(node, batch)["reward"], batch["reward"])


@each_model
def test_a_loaded_state_continues_with_the_same_bits(name: str) -> None:
    whole, half = make(name, seed=1), make(name, seed=1)
    expected = run(whole, range(6))[3:]
    run(half, range(3))
    saved = half.state_dict()
    run(half, range(30, 31))  # a state is a copy
    resumed = make(name, seed=2)
    poison(3)
    resumed.load_state_dict(saved)
    found = run(resumed, range(3, 6))
    for one, other in zip(found, expected, strict=True):
        assert one["reward"].tobytes() == other["reward"].tobytes()
    assert same_bits(whole.state_dict(), resumed.state_dict())


@each_model
def test_a_state_before_the_first_firing_can_be_loaded(name: str) -> None:
    node, other = make(name, seed=1), make(name, seed=1)
    other.load_state_dict(node.state_dict())
    assert same_bits(node.state_dict(), other.state_dict())


@each_model
def test_the_bits_depend_on_the_seed_and_not_on_global_generators(name: str) -> None:
    poison(1)
    one = run(make(name, seed=4), range(3))[-1]["reward"]
    poison(2)
    assert run(make(name, seed=4), range(3))[-1]["reward"].tobytes() == one.tobytes()
    if name in LEARNED:
        assert run(make(name, seed=5), range(3))[-1]["reward"].tobytes() != one.tobytes()


@each_model
@pytest.mark.parametrize("action", [REAL, SEVERAL, Column("float32", (2,))])
def test_actions_of_every_kind_are_taken(name: str, action: Column) -> None:
    schema = schema_of(action=action)
    facts(name, schema)
    for found in run(make(name, schema), range(2), schema):
        assert np.isfinite(found["reward"]).all()


@each_model
@pytest.mark.parametrize("obs", [NESTED, IMAGE], ids=["nested", "image"])
def test_nested_observations_and_images_are_taken(name: str, obs: Any) -> None:
    schema = schema_of(obs=obs)
    facts(name, schema)
    node = make(name, schema, default_models=True)
    for found in run(node, range(2), schema):
        assert np.isfinite(found["reward"]).all()


@each_model
def test_rows_may_be_unrolls(name: str) -> None:
    schema = schema_of(steps=5)
    assert facts(name, schema, parts=True).outs["out"]["reward"].shape == (5,)
    for found in run(make(name, schema), range(2), schema):
        assert found["reward"].shape == (ROWS, 5)


@each_model
def test_a_token_without_rows_passes(name: str) -> None:
    node = make(name, parts=True)
    run(node, range(1))
    before = {k: v for k, v in node.state_dict()["model"].items() if k != "tokens"}
    empty = rows().take(slice(0, 0))
    found = fire(node, empty, empty)
    assert len(found) == 0
    assert dict(found.schema) == dict(facts(name, schema_of(), parts=True).outs["out"])
    after = {k: v for k, v in node.state_dict()["model"].items() if k != "tokens"}
    assert same_bits(before, after)


@each_model
def test_a_column_that_is_missing_is_named(name: str) -> None:
    for column in ("reward", *REWARD_MODELS[name].reads):
        schema = {k: c for k, c in schema_of().items() if k != column}
        with pytest.raises(UnsoundError, match=f"{name} reads the column '{column}', and the rows"):
            facts(name, schema)


@each_model
def test_both_parts_and_their_weights_are_reported(name: str) -> None:
    node = make(name, log_every_tokens=2)
    run(node, range(4))
    reports = [r.values for r in node.ctx.records if isinstance(r, MetricsRecord)]
    parts = [r for r in reports if "bonus_mean" in r]
    assert len(parts) == 2
    assert set(parts[0]) == {
        "env_reward_mean",
        "bonus_mean",
        "bonus_max",
        "weight",
        "reward_weight",
    }
    assert parts[1]["env_reward_mean"] == pytest.approx(rows(seed=3)["reward"].mean())


@each_learned
def test_training_changes_the_bonus_of_the_same_rows(name: str) -> None:
    expert = rows(seed=9)
    trained, untrained = make(name), make(name, lr=1e-9)
    for node in (trained, untrained):
        fire(node, rows(), expert)
    for node in (trained, untrained):
        fire(node, rows())
    one, other = (fire(node, rows())["reward"] for node in (trained, untrained))
    assert not np.array_equal(one, other)


@each_learned
def test_a_noisy_model_is_refused(name: str) -> None:
    with pytest.raises(UnsoundError, match="does not act, so its noise is never drawn; leave out"):
        facts(name, schema_of(), model=Mlp(hidden=[8], noisy=True))


@each_learned
def test_trunks_of_their_own_for_single_heads_are_refused(name: str) -> None:
    """Each network of every reward model has one head, except where actions of several numbers have several."""
    what = r"`shared` of the model has no effect: the network '\w+' has one head; leave it out"
    with pytest.raises(UnsoundError, match=what):
        facts(name, schema_of(), model=Mlp(hidden=[8], shared=False))


def test_inputs_that_are_no_observations_are_not_normalised() -> None:
    facts("icm", schema_of(), encoder=Mlp(hidden=[8], normalise_obs=True))
    what = (
        "the network 'inverse' of icm sees what another network gives, .*leave out `normalise_obs`"
    )
    with pytest.raises(UnsoundError, match=what):
        facts("icm", schema_of(), model=Mlp(hidden=[8], normalise_obs=True))


@each_learned
def test_a_model_that_never_learns_is_refused(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"updates_per_token\n  Input should be greater than or equal to 1"
    ):
        make(name, updates_per_token=0)


@each_learned
def test_a_recurrent_model_is_refused(name: str) -> None:
    with pytest.raises(UnsoundError, match="can neither be recurrent"):
        facts(name, schema_of(), model=Gru(size=4))


@each_learned
def test_every_setting_is_read(name: str) -> None:
    cls, read = REWARD_MODELS[name], set()

    class RecordedConfig(cls.Config):  # type: ignore[misc, name-defined]
        def __getattribute__(self, attribute: str) -> Any:
            read.add(attribute)
            return super().__getattribute__(attribute)

    node = make(name)
    config = RecordedConfig(**dict(node.config))
    recorded = cls(config=config, context=node.ctx)
    run(recorded, range(3))
    assert set(cls.Config.model_fields) - read == set()


@each_imitating
def test_an_expert_with_other_columns_is_refused(name: str) -> None:
    needs = facts(name, schema_of(), schema_of(obs=Column("float32", (5,)))).needs["expert"]
    assert needs["obs"] == OBS  # `check` compares the columns


@each_imitating
def test_a_model_without_an_expert_is_refused(name: str) -> None:
    cls = REWARD_MODELS[name]
    config = cls.Config(**SETTINGS.get(name, {}))
    alone = Surroundings({"data": schema_of()}, {}, frozenset({"out"}))
    with pytest.raises(UnsoundError, match=f"connect demonstrations: `demos -> {name}.expert`"):
        cls.describe(config, alone)


@each_imitating
def test_nothing_is_learned_before_the_experts_rows_arrive(name: str) -> None:
    node = make(name)
    networks = {k: v for k, v in vars(node).items() if hasattr(v, "params")}
    before = {k: v.params.clone() for k, v in networks.items()}
    fire(node, rows(), None)
    assert all(bool((v.params == before[k]).all()) for k, v in networks.items())


@each_imitating
def test_rows_of_a_live_expert_are_kept_up_to_a_number(name: str) -> None:
    node = make(name, expert_rows=2 * ROWS)
    for seed in range(5):
        fire(node, rows(), rows(seed=seed))
    held = node.expert_steps.all()
    newest = np.concatenate([rows(seed=3)["obs"], rows(seed=4)["obs"]])
    np.testing.assert_array_equal(held["obs"], newest)
