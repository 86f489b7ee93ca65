"""The evaluator of matches: scores against each opponent, with the same matches in every evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.core.records import MetricsRecord
from flowrl.nodes.evaluators.match_evaluator import MatchEvaluator
from flowrl.runs.folder import read_jsonl
from tests.nodes.league.test_league import league_graph
from tests.nodes.league.test_match_collector import Counting, make_envs, scripted, weights_of


class CountingWithEval(Counting):
    """It acts in evaluations as in training."""

    def eval_mode(self, seed: int) -> Any:
        return self.collect_mode(seed)


def evaluator(*ws: int, **params: Any) -> MatchEvaluator:
    envs = make_envs(rounds=3)
    spec = envs.spec()
    policy = CountingWithEval(obs=spec.obs, action=spec.action)
    params = {"opponents": scripted(spec, *ws), "n_episode": 4, **params}
    return MatchEvaluator(envs=envs, policy=policy, **params)


def test_it_reports_the_scores_against_each_opponent() -> None:
    node = evaluator(1, 2, names=["worse", "better"])
    results = node.fire(weights_of(2))  # scissors against paper wins, against scissors it draws
    assert results["opponent"].tolist() == [-2] * 4 + [-3] * 4
    assert results["side"].tolist() == [0, 1] * 4
    [metrics] = [r.values for r in node.ctx.records if isinstance(r, MetricsRecord)]
    assert metrics == {
        **{"worse/score_mean": 1, "worse/return_mean": 3},
        **{"better/score_mean": 0.5, "better/return_mean": 0},
    }
    assert node.ctx.take_count() is None


def test_every_evaluation_plays_the_same_matches() -> None:
    node = evaluator(1)
    first, second = (node.fire(weights_of(0)) for _ in range(2))
    assert first["seed"].tolist() == second["seed"].tolist()
    assert len(set(first["seed"].tolist())) == 4


def test_wrong_settings_are_refused() -> None:
    for params, message in (
        ({"opponents": []}, "it has no opponents to play against; list some"),
        ({"names": ["a", "a"]}, "1 different names are given for 2 opponents; give one for each"),
    ):
        node = evaluator(1, 2, **{"opponents": scripted(make_envs().spec(), 1, 2), **params})
        known = Surroundings({}, {"envs": node.envs.spec()}, frozenset())
        with pytest.raises(UnsoundError, match=message):
            MatchEvaluator.describe(node.config, known)


@pytest.mark.parametrize("given", [{"counts": True}, {"origin": True}])
def test_settings_of_collectors_without_an_effect_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"MatchEvaluator.{next(iter(given))} is .*; leave it out"):
        evaluator(1, **given)


@pytest.mark.slow
def test_it_is_paced_by_the_learner_of_a_graph(tmp_path: Path) -> None:
    data = league_graph()
    opponents = [{"type": "random"}, {"type": "random"}]
    data["nodes"]["judge"] = {"type": "match_evaluator", "n_episode": 6, "opponents": opponents}
    data["nodes"]["table"] = {"type": "env_manager", "count": 2}
    data["edges"] += [{"learner -> judge": {"every": 2}}, "judge <-> table"]
    digests = set()
    for placement in ("serial", "threads"):
        out = tmp_path / placement
        digests.add(flowrl.load(data).run(train_iters=4, out=out, placement=placement).digest)
    rows = [row for row in read_jsonl(tmp_path / "serial/metrics.jsonl") if row["node"] == "judge"]
    assert len(rows) == 2
    assert {"random/score_mean", "random#2/score_mean"} <= rows[0].keys()
    assert len(digests) == 1
    texts = [(tmp_path / p / "metrics.jsonl").read_text() for p in ("serial", "threads")]
    assert texts[0] == texts[1]
