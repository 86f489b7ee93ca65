"""A league whose players have policies of their own: `check` follows the weights of each to every collector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flowrl
from tests.nodes.league.mixed_league import DQN, mixed_league


def problems(graph: Any) -> list[str]:
    return [str(problem) for problem in flowrl.load(graph).check().problems]


def mixed(**of_nodes: Any) -> dict[str, Any]:
    data = mixed_league()
    for name, changes in of_nodes.items():
        data["nodes"][name] = {**data["nodes"][name], **changes}
    return data


def test_players_with_policies_of_their_own_are_sound() -> None:
    assert problems(mixed()) == []


def test_the_policy_of_a_player_must_have_the_network_of_its_learner() -> None:
    """The message names the collector that has a wrong policy, the learner, and what to write."""
    [problem] = problems(mixed(collector={"policies": {}}))
    assert (
        "league.matches -> collector.matches: collector acts for hunter with another n" in problem
    )
    assert "(ppo, `policy`) than hunter trains (dqn, `policy`, " in problem
    assert "model.type is mlp of hunter and gru of collector" in problem
    assert "give collector the policy of hunter for hunter: `policies: {hunter: …}`" in problem


def test_the_policy_of_a_collector_is_that_of_all_players_that_it_does_not_name() -> None:
    [problem] = problems(mixed(hunting={"policy": DQN, "policies": {}}))
    assert "hunting acts for main with another network (dqn, `policy`) than learner t" in problem
    assert problems(mixed(hunting={"policy": DQN, "policies": {"main": {}}})) == []


def test_a_collector_must_have_the_policy_of_its_own_player() -> None:
    wider = {**DQN, "model": {"type": "mlp", "hidden": [7]}}
    found = problems(mixed(hunting={"policies": {"hunter": wider}}))
    assert len(found) == 2
    assert "hunter.weights -> hunting.weights: hunting acts with another network" in found[0]
    assert "hunting acts for hunter with another network" in found[1]


def test_a_policy_for_a_player_that_the_league_has_not_is_refused() -> None:
    [problem] = problems(mixed(collector={"policies": {"hunter": DQN, "huntr": DQN}}))
    assert "policies.huntr depends on 'player/huntr', which league.matches does not give" in problem
    assert "did you mean 'player/hunter'" in problem


def test_policies_by_name_need_the_name_of_the_own_player() -> None:
    found = problems(mixed(hunting={"player": None}))
    assert (
        "the collector does not say for which player it plays; give it `player: hunter`" in found[0]
    )


def test_a_player_that_learns_cannot_act_without_weights() -> None:
    found = problems(mixed(collector={"policies": {"hunter": {"type": "random"}}}))
    assert "the player hunter: random takes no weights, and the player learns" in found[0]
    found = problems(mixed(collector={"policies": {"main": {}}, "policy": {"type": "random"}}))
    assert "collector acts for hunter without the weights of hunter (random, `policy`)" in found[0]


def test_an_error_in_the_policy_of_a_player_names_the_player() -> None:
    found = problems(mixed(collector={"policies": {"hunter": {"type": "sac"}}}))
    assert "nodes.collector: the player hunter: sac needs real-valued actions" in found[0]


def test_a_setting_that_the_learner_of_a_player_does_not_give_is_refused() -> None:
    explores = {**DQN, "explore": [{"type": "random_actions"}]}
    [problem] = problems(mixed(collector={"policies": {"hunter": explores}}))
    assert "policies.hunter.explore.0.share depends on" in problem
    assert (
        "which hunter.weights does not give with the weights for hunter; give collector" in problem
    )


def test_a_match_evaluator_has_the_policy_of_its_learner() -> None:
    data = mixed()
    judge = {"type": "match_evaluator", "n_episode": 2, "opponents": [{"type": "random"}]}
    data["nodes"] |= {"judge": judge, "table": {"type": "env_manager", "count": 1}}
    data["edges"] += ["judge <-> table", {"hunter -> judge": {"every": 4}}]
    [problem] = problems(data)
    assert "judge acts with another network (ppo, `policy`) than hunter trains (dqn, " in problem
    data["nodes"]["judge"] = {**judge, "policy": DQN}
    assert problems(data) == []


def test_an_error_in_the_policy_of_an_opponent_is_located_at_that_policy(tmp_path: Path) -> None:
    def found(*opponents: str) -> str:
        """The problem of an opponent, without the name of the file. Opponents begin at line 6; there is no league."""
        lines = "".join(f"      - {one}\n" for one in opponents)
        text = (
            "extends: cartpole_ppo\nenv: {type: open_spiel, game: kuhn_poker, id: null}\nnodes:\n"
        )
        text += (
            f"  collector:\n    opponents:\n{lines}    type: match_collector\n  evaluator: null\n"
        )
        (tmp_path / "g.yaml").write_text(text)
        no_league, problem = problems(str(tmp_path / "g.yaml"))
        assert "'opponents' has no effect" in no_league
        return problem.removeprefix(f"{tmp_path}/g.yaml")

    where = found("random", "{type: expert, checkpoint: none.safetensors}")
    assert where.startswith(":7:24: nodes.collector: there is no checkpoint 'none.safetensors'")
    where = found("random", "random", "{type: dqn}")
    assert where.startswith(":8:9: nodes.collector: the opponent dqn needs weights")
    where = found("{type: bc, model: {type: mlp, shared: false}}")
    assert where.startswith(":6:39: nodes.collector: `shared` of the model has no effect")
