"""Node types whose ports depend on their parameters."""

from __future__ import annotations

from typing import Any

import pytest

from flowrl.checks.check import check
from flowrl.core.batch import Batch
from flowrl.core.config import Config, param
from flowrl.core.facts import Facts, Surroundings
from flowrl.core.node import Node
from flowrl.core.ports import In, Out
from flowrl.graph.loading import load_data
from tests.sites.run_comparison import compare_placements
from tests.toys.toy_nodes import TABLE, table
from tests.toys.toy_runs import toy_graph


class Dealer(Node):
    """Adds a number to the rows of its input, a different one for each output."""

    data = In("samples")

    class Config(Config):
        outputs: dict[str, int] = param(..., "the outputs, each with what is added")
        inputs: list[str] = param([], "further inputs, whose numbers are added as well")

    @classmethod
    def configured(cls, config: Any) -> type[Dealer]:
        outputs = {name: Out("samples") for name in config.outputs}
        return cls.with_ports({name: In("samples") for name in config.inputs} | outputs)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs=dict.fromkeys(config.outputs, TABLE))

    def fire(self, data: Batch, *others: Batch) -> dict[str, Batch]:
        total = data["n"] + sum(other["n"] for other in others)
        return {name: table(*(total + add)) for name, add in self.config.outputs.items()}


def dealing_graph(**params: Any) -> dict[str, Any]:
    nodes = {
        "source": {"type": "Source"},
        "other": {"type": "Source"},
        "dealer": {"type": f"{__name__}:Dealer", **params},
        "few": {"type": "Drain"},
        "many": {"type": "Drain"},
    }
    edges = [
        "source -> dealer.data",
        "other -> dealer.extra",
        "dealer.low -> few",
        "dealer.high -> many",
    ]
    return toy_graph(nodes, edges)


@pytest.mark.slow
def test_ports_that_parameters_name_work_in_every_placement(tmp_path, forked_processes):
    graph = dealing_graph(outputs={"low": 1, "high": 1000}, inputs=["extra"])
    facts = compare_placements(graph, tmp_path, "threads", "processes", rounds=5)
    assert facts["status"] == "finished"
    logs = [facts[f"logs/{name}.log"] for name in ("few", "many")]
    assert [line.rpartition(" ")[-1] for log in logs for line in log[:2]] == [
        "1",
        "3",
        "1000",
        "1002",
    ]


@pytest.mark.parametrize("name", ["state", "config", "data", "outputs", "two words"])
def test_a_name_that_no_port_can_have_is_refused(name):
    found = check(load_data(dealing_graph(outputs={"low": 1, name: 2}, inputs=["extra"])))
    assert f"nodes.dealer: '{name}' cannot be the name of a port of Dealer" in " ".join(
        map(str, found.problems)
    )


def test_an_option_of_an_edge_into_such_a_port_can_be_set():
    graph = dealing_graph(outputs={"low": 1, "high": 2}, inputs=["extra"])
    checked = check(load_data(graph, overrides={"dealer.extra.capacity": "7"}))
    assert checked.problems == []
    edge = next(e for e in checked.graph.edges if str(e.to) == "dealer.extra")
    assert edge.capacity == 7


def test_an_edge_to_a_port_that_the_parameters_do_not_name_is_refused():
    found = check(load_data(dealing_graph(outputs={"low": 1, "high": 2})))
    assert "extra" in " ".join(map(str, found.problems))


def test_the_node_has_its_ports_by_hand():
    dealer = Dealer(outputs={"low": 1, "high": 10}, inputs=["extra"])
    assert [*dealer.ports] == ["data", "extra", "low", "high"]
    given = dealer.fire(table(1, 2), table(100, 100))
    assert {name: batch["n"].tolist() for name, batch in given.items()} == {
        "low": [102, 103],
        "high": [111, 112],
    }
    assert type(dealer).configured(dealer.config) is type(dealer)
