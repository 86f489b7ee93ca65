"""The evaluator of groups of agents: returns of each group, a goal about one, and the best weights of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.core.facts import UnsoundError
from flowrl.core.records import CheckpointRecord, MetricsRecord, VerdictRecord
from flowrl.nodes.envs.agent_columns import env_spec
from flowrl.nodes.evaluators.group_evaluator import GroupEvaluator
from tests.nodes.envs.group_envs import make_manager, pasture
from tests.nodes.group_policies import Following
from tests.nodes.toy_policies import weights


def evaluator(**params: Any) -> Any:
    params = {"episodes": 4, **({} if "envs" in params else {"env": pasture()}), **params}
    specs = env_spec(params.get("env") or pasture(), 1).groups
    policies = {n: Following(obs=s.obs, action=s.action) for n, s in specs.items()}
    return GroupEvaluator(policies=policies, **params)


def both(wolves: int, sheep: int) -> dict[str, Any]:
    return {"wolves": weights(wolves), "sheep": weights(sheep)}


def records(node: Any, kind: Any) -> list[Any]:
    return [record for record in node.ctx.records if isinstance(record, kind)]


def test_the_episodes_are_those_of_each_groups_agents() -> None:
    node = evaluator(env_count=2, env=pasture(game=["w0 w1 s0", "w0 w1", "w1 s0"]))
    found = node.eval(both(0, 0))
    assert found["wolves"].lengths == [2, 3] * 4  # two wolves in four episodes of the envs
    assert found["sheep"].lengths == [1, 1] * 4  # it leaves and returns
    metrics = records(node, MetricsRecord)[0].values
    returns = np.array(found["wolves"].returns)
    assert metrics["wolves/return_mean"] == metrics["return_mean"] == pytest.approx(returns.mean())
    assert metrics["wolves/team_return_mean"] == pytest.approx(returns.sum() / 4)
    sheep = np.array(found["sheep"].returns)
    assert metrics["sheep/return_mean"] == pytest.approx(sheep.mean())
    assert metrics["sheep/team_return_mean"] == pytest.approx(sheep.sum() / 4)


def test_every_evaluation_plays_the_same_episodes() -> None:
    node = evaluator()
    assert node.eval(both(1, 2))["sheep"].returns == node.eval(both(1, 2))["sheep"].returns
    assert node.eval(both(1, 2), n_episode=9)["sheep"].lengths == [2, 3] * 9


def test_failed_episodes_are_played_again() -> None:
    envs = make_manager(pasture(fails=0.1), count=2, max_retry=1000, retry_waiting_time_s=0.0)
    node = evaluator(envs=envs, episodes=6)
    found = node.eval(both(0, 0))
    assert found["wolves"].lengths == [3, 5, 2] * 6  # in the order in which they ended
    assert envs.failures.failures > 2


def test_the_goal_is_about_one_group_and_new_episodes_confirm_it() -> None:
    node = evaluator(group="sheep", stop_value=5.0)
    found = node.eval(both(0, 0))
    assert found["sheep"].return_mean > 5
    assert found["sheep"].stop
    assert not found["wolves"].stop
    assert "the goal is 5" in records(node, VerdictRecord)[0].reason
    values = records(node, MetricsRecord)[0].values
    assert values["return_mean"] == values["sheep/return_mean"]
    assert "confirm_return_mean" in values
    high = evaluator(group="sheep", stop_value=500.0)
    high.eval(both(0, 0))
    assert not records(high, VerdictRecord)


def test_the_best_checkpoint_has_the_weights_of_all_groups() -> None:
    node = evaluator(group="sheep")
    tried = [both(k, 2 * k) for k in range(4)]
    returns = [node.eval(states)["sheep"].return_mean for states in tried]
    saved = records(node, CheckpointRecord)
    best = tried[int(np.argmax(returns))]
    assert saved[-1].states == {
        "wolves_weights": best["wolves"],
        "sheep_weights": best["sheep"],
    }
    assert saved[-1].info["eval_return"] == max(returns)
    assert node.state("found").command["best"] == max(returns)


@pytest.mark.parametrize(
    ("params", "what"),
    [
        ({"group": "dogs"}, "there is no group 'dogs'; choose one of wolves, sheep"),
        (
            {"stop_value": 3.0},
            "the goal does not say of which group 3 is the return; give `group`: wolves, sheep",
        ),
        (
            {"metric": "speed"},
            "there is no number 'speed' in the listed info of the env; known: return; list it: "
            "`env: {info: {speed: bool}}`",
        ),
    ],
)
def test_goals_about_nothing_are_refused(params: Any, what: str) -> None:
    with pytest.raises(UnsoundError) as refused:
        evaluator(**params)
    assert str(refused.value) == what


def test_a_group_that_never_acts_has_no_return() -> None:
    node = evaluator(env=pasture(game=["w0 w1"] * 2))
    assert set(node.eval(both(0, 0))) == {"wolves"}
    with pytest.raises(ValueError, match="no agent of the group sheep had an episode"):
        evaluator(env=pasture(game=["w0 w1"] * 2), group="sheep").eval(both(0, 0))


def test_an_episode_that_does_not_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="env 0: an episode has not ended after 5 steps"):
        evaluator(most_steps=5).eval(both(0, 0))


def test_an_evaluation_becomes_a_video(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    node = evaluator(episodes=2)
    (file,) = node.record_videos(weights(0), weights(0), path=tmp_path / "all.gif")
    assert file.stat().st_size > 0
