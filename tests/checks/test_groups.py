"""What `flowrl check` says of groups."""

from __future__ import annotations

from typing import Any

from flowrl.checks.check import check
from flowrl.core.batch import Batch
from flowrl.core.facts import Facts, Surroundings
from flowrl.core.node import Node
from flowrl.core.ports import In, Out
from flowrl.graph.loading import load_data
from tests.toys.toy_runs import toy_graph

GROUP = {"type": "GroupLearner", "replicas": 2}


class Texts(Node):
    """Gives tokens that are no tables."""

    data = In("samples")
    out = Out("samples")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"out": None})

    def fire(self, data: Batch) -> str:
        return "a text"


class Sum(Node):
    """A node that is no learner, and whose replicas form a group."""

    replicas_form_group = True
    data = In("samples")

    def fire(self, data: Batch) -> None:
        assert self.ctx.group is not None
        self.ctx.log(str(self.ctx.group.sum(data["n"].sum(keepdims=True))))


def problems(nodes: dict[str, Any], edges: list[Any]) -> list[str]:
    return [str(p) for p in check(load_data(toy_graph(nodes, edges))).problems]


def test_a_group_takes_each_token_and_not_every_second_one() -> None:
    nodes = {"s": {"type": "Source", "give": 6}, "w": "Widener", "l": GROUP}
    found = check(load_data(toy_graph(nodes, ["s -> w -> l"])))
    assert found.problems == []
    assert found.program.round.firings == {"s": 1, "w": 6, "l": 6}


def test_a_token_of_fewer_rows_than_replicas_is_refused() -> None:
    nodes = {"s": "Source", "w": "Widener", "l": {**GROUP, "replicas": 8}}
    assert problems(nodes, ["s -> w -> l"]) == [
        "graph: w.out -> l.data: a token of 7 rows cannot be split among the 8 replicas of l; "
        "give batches of more rows, or fewer replicas"
    ]


def test_what_is_no_table_is_not_split() -> None:
    nodes = {"s": "Source", "g": "tests.checks.test_groups:Texts", "l": GROUP}
    assert problems(nodes, ["s -> g -> l"]) == [
        "graph: g.out -> l.data: only tables are split among the 2 replicas of l, and this is no table; "
        "give g 2 replicas, too, or l one"
    ]
    assert problems({**nodes, "g": {"type": nodes["g"], "replicas": 2}}, ["s -> g -> l"]) == []


def test_replicas_of_a_group_must_get_the_same_tokens_and_versions() -> None:
    nodes = {"s": {"type": "Source", "give": 2}, "t": "Source", "w": "Widener", "l": GROUP}
    drops = {"when_full": "drop_oldest", "capacity": 1}
    assert problems(nodes, [{"s -> w": drops}, "w -> l", "t -> l.data"]) != []
    [problem] = problems(
        {"s": nodes["s"], "w": "Widener", "l": GROUP}, [{"s -> w": drops}, "w -> l"]
    )
    assert problem == (
        "graph: w.out -> l.data: tokens may be dropped on the way to l, whose replicas must all get their parts; "
        "let no edge before it drop tokens or merge them as they come, or give it one replica"
    )
    [problem] = problems(
        {
            "s": {"type": "Source", "replicas": 3},
            "w": {"type": "Widener", "replicas": 3},
            "l": GROUP,
        },
        ["s -> w", {"w -> l": {"merge": "any"}}],
    )
    assert problem == (
        "graph: w.out -> l.data: the replicas of l would get parts of different tokens; leave out `merge: any`"
    )


def test_the_replicas_of_a_group_do_not_fail_alone() -> None:
    nodes = {"s": "Source", "w": "Widener", "g": {"type": "tests.checks.test_groups:Sum", "replicas": 2,
             "on_failure": "restart"}}  # fmt: skip
    assert problems(nodes, ["s -> w -> g"]) == [
        "graph: nodes.g: on_failure is restart, and its replicas fire together; "
        "leave on_failure out, or give it one replica"
    ]
