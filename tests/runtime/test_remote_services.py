"""A link across sites works as it does on one: what is given, told, counted, and raised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowrl.core.errors import NodeError, UsageError
from flowrl.core.node import Node
from flowrl.core.ports import Service
from tests.sites.comparing import ran, same_everywhere
from tests.toys.running import tree

APART = ["f=thread,w=main", "f=main,w=thread", "f=thread:a,w=thread:b,l=thread:b"]


def mine(name: str, **params: Any) -> dict[str, Any]:
    return {"type": f"tests.runtime.link_nodes:{name}", **params}


def farm(*edges: str, **nodes: Any) -> dict[str, Any]:
    """A farmer, his well, and a learner."""
    whole = {"f": mine("Farmer"), "w": mine("DeepWell"), "l": "Learner", **nodes}
    return tree(whole, [*(edges or ["f <-> w"]), "f -> l"])


def lines(facts: dict[str, Any], key: str) -> list[str]:
    """What a node told, without the firings."""
    return [line.partition("] ")[2] for line in facts[f"logs/{key}.log"][1:]]


@pytest.mark.parametrize("placement", APART)
def test_calls_between_sites_change_nothing(placement: str, tmp_path: Path) -> None:
    facts = same_everywhere(farm(), tmp_path, placement, rounds=7)
    assert lines(facts, "f")[0].startswith("1 [(1, 2), ()] ")
    assert (facts["env_steps"], facts["episodes"]) == (21, 21)  # the well counts, too


def test_calls_between_processes_change_nothing(tmp_path: Path) -> None:
    placements = "f=process,w=main", "f=process:a,w=process:b,l=thread"
    same_everywhere(farm(), tmp_path, *placements, train_iters=5)


def test_what_a_service_tells_is_told_with_its_clients_firing(tmp_path: Path) -> None:
    facts = same_everywhere(farm(), tmp_path, "f=thread,w=main", rounds=2)
    told = ["draw 1 from 2", "draw 3 from 4", "draw 4 from 2", "draw 6 from 4"]
    assert lines(facts, "w") == told
    metrics = [line for line in facts["metrics.jsonl"] if '"node": "w"' in line]
    assert len(metrics) == 4
    assert '"firing": 1, ' in metrics[-1]


@pytest.mark.parametrize("calls", ["f <-> w", "f <-> p"])
def test_what_a_service_tells_while_it_is_made_is_told(calls: str, tmp_path: Path) -> None:
    nodes = {"w": mine("DeepWell", tells_early=True), "p": mine("Pump")}
    edges = [calls, "p <-> w"] if "p" in calls else [calls]
    if "p" not in calls:
        del nodes["p"]
    facts = same_everywhere(farm(*edges, **nodes), tmp_path, *APART, rounds=1)
    assert lines(facts, "w")[0] == "dug"


def test_replicas_call_services_of_their_own(tmp_path: Path) -> None:
    nodes = {"f": mine("Farmer", replicas=3), "w": mine("DeepWell", replicas=3)}
    placements = "f=thread,w=main", "f=thread:a,w=thread"
    facts = same_everywhere(farm(**nodes), tmp_path, *placements, rounds=4)
    assert lines(facts, "f#1") != lines(facts, "f#2")


@pytest.mark.parametrize(
    "placement",
    ["f=main,p=thread,w=main", "f=thread:a,p=thread:b,w=thread:c", "f=main,p=main,w=thread"],
)
def test_a_service_may_call_another(placement: str, tmp_path: Path) -> None:
    whole = farm("f <-> p", "p <-> w", p=mine("Pump"))
    facts = same_everywhere(whole, tmp_path, placement, rounds=5)
    assert len(lines(facts, "p")) == 15
    assert lines(facts, "w")[0] == "draw 1 from 3"


@pytest.mark.parametrize("placement", ["s=thread", "f=thread,g=thread,s=main", "f=thread:a,s=main"])
def test_a_service_without_state_serves_many(placement: str, tmp_path: Path) -> None:
    whole = tree(
        {"f": mine("Farmer"), "g": mine("Farmer", times=2), "s": mine("Spring"), "l": "Learner"},
        ["f <-> s", "g <-> s", "f -> l", "g -> d"],
    )
    whole["nodes"]["d"] = {"type": "tests.toys.toy_nodes:Drain"}
    same_everywhere(whole, tmp_path, placement, rounds=5)


@pytest.mark.parametrize("placement", ["serial", "s=thread,f=main"])
def test_a_service_with_several_clients_cannot_record(placement: str, tmp_path: Path) -> None:
    whole = tree(
        {"f": mine("Farmer"), "g": mine("Farmer"), "s": mine("Spring", tells=True), "d": "Drain",
         "e": "Drain"},
        ["f <-> s", "g <-> s", "f -> d", "g -> e"],
    )  # fmt: skip
    with pytest.raises(
        NodeError, match=r"node '[fg]', firing 0 .*: a service with several clients"
    ):
        ran(whole, placement, tmp_path, rounds=5)


# what goes wrong


@pytest.mark.parametrize("placement", ["serial", "f=thread,w=main", "f=main,w=process"])
def test_what_a_service_raises_is_its_clients_failure(placement: str, tmp_path: Path) -> None:
    with pytest.raises(NodeError) as caught:
        ran(farm(w=mine("DeepWell", dry_at=5)), placement, tmp_path, rounds=9)
    assert str(caught.value) == "node 'f', firing 1 (round 1): ValueError: dry after 5"
    assert isinstance(caught.value.__cause__, Exception)


@pytest.mark.parametrize("placement", ["serial", *APART])
def test_a_service_that_cannot_be_made_is_named(placement: str, tmp_path: Path) -> None:
    whole = farm(w={"type": "tests.runtime.link_nodes:Unmade"})
    with pytest.raises(NodeError, match="node 'w', being made: OSError: no ground"):
        ran(whole, placement, tmp_path, rounds=9)


@pytest.mark.parametrize("placement", APART)
def test_a_restart_makes_the_service_anew(placement: str, tmp_path: Path) -> None:
    nodes = {"f": mine("Farmer", on_failure="restart"), "w": mine("DeepWell", dry_at=5)}
    facts = same_everywhere(farm(**nodes), tmp_path, placement, rounds=5)
    told = "node 'f', firing 1 (round 1): ValueError: dry after 5"
    assert told in lines(facts, "f")
    assert lines(facts, "w")[2:4] == ["draw 1 from 2", "draw 3 from 4"]


def test_a_restart_makes_a_chain_of_services_anew(tmp_path: Path) -> None:
    nodes = {
        **{"f": mine("Farmer", on_failure="restart"), "p": mine("Pump")},
        "w": mine("DeepWell", dry_at=4),
    }
    whole = farm("f <-> p", "p <-> w", **nodes)
    placements = "f=main,p=thread,w=main", "f=thread:a,p=thread:b,w=thread:c"
    same_everywhere(whole, tmp_path, *placements, rounds=5)


def test_only_the_services_methods_can_be_called(tmp_path: Path) -> None:
    whole = farm(f=mine("Farmer", asks_for="unlisted"))
    words = "AttributeError: the service 'deep' offers draw, whisper, verdict; it has no 'unlisted'"
    with pytest.raises(NodeError, match=words):
        ran(whole, "f=thread,w=main", tmp_path, rounds=9)


@pytest.mark.parametrize("placement", ["f=main,w=thread:a,v=thread:b", "f=main,w=main,v=thread"])
def test_services_that_are_called_at_once_change_nothing_either(
    placement: str, tmp_path: Path
) -> None:
    wells = {"f": mine("Village", at_once=True), "w": mine("DeepWell"), "v": mine("DeepWell")}
    whole = tree({**wells, "l": "Learner"}, ["w, v <-> f", "f -> l"])
    facts = same_everywhere(whole, tmp_path, placement, rounds=4)
    assert lines(facts, "v") == [f"draw {k} from 2" for k in range(1, 13)]


def test_an_answer_is_taken_before_the_next_call(tmp_path: Path) -> None:
    whole = farm(f=mine("Farmer", asks_for="two at once"))
    words = "service 'deep': a call of 'draw' is pending; take its reply before 'verdict' is called"
    with pytest.raises(NodeError, match=words):
        ran(whole, "f=thread,w=main", tmp_path, rounds=9)


def test_no_method_has_the_name_by_which_calls_are_begun() -> None:
    with pytest.raises(TypeError, match="a service cannot have a method 'begin'"):
        Service("deep", methods=("draw", "begin"))
    with pytest.raises(TypeError, match=r"Beginning: a service cannot have the attribute 'begin'"):

        class Beginning(Node):
            serve = Service("deep", methods=("draw",))

            def draw(self) -> None: ...

            def begin(self) -> None: ...


@pytest.mark.parametrize("placement", ["f=thread,w=main", "f=process,w=main"])
def test_what_no_call_can_give_is_an_error(placement: str, tmp_path: Path) -> None:
    whole = farm(f=mine("Farmer", asks_for="whisper"))
    words = r"a call between sites cannot carry a tests.runtime.link_nodes.Secret; name it in the service's"
    with pytest.raises(NodeError, match=words):
        ran(whole, placement, tmp_path, rounds=9)


def test_a_node_that_fires_is_called_on_its_own_site(tmp_path: Path) -> None:
    whole = tree(
        {"f": mine("Farmer"), "m": mine("Mill"), "c": "Source", "d": "Drain"},
        ["f <-> m", "c -> m", "f -> d"],
    )
    with pytest.raises(UsageError, match="f calls m, which also fires; put both on one site"):
        ran(whole, "f=thread,m=main", tmp_path, rounds=9)
    same_everywhere(whole, tmp_path, "threads", rounds=4)


# cuts


@pytest.mark.parametrize("placement", APART)
def test_a_services_verdict_cuts_at_the_same_place(placement: str, tmp_path: Path) -> None:
    whole = farm(f=mine("Farmer", stops_at=8))
    facts = same_everywhere(whole, tmp_path, placement, rounds=30)
    assert (facts["status"], facts["env_steps"]) == ("solved", 9)


@pytest.mark.parametrize("limits", [{"steps": 20}, {"train_iters": 4}, {"rounds": 6}])
def test_limits_cut_at_the_same_place(limits: dict[str, int], tmp_path: Path) -> None:
    whole = farm("f <-> p", "p <-> w", p=mine("Pump"))
    same_everywhere(whole, tmp_path, "f=thread:a,p=thread:b,w=thread:c", **limits)
