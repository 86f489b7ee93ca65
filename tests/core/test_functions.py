"""Stateless nodes that are made from functions."""

from __future__ import annotations

import numpy as np
import pytest

import flowrl
from flowrl import Batch, Column
from flowrl.core.facts import Surroundings
from flowrl.core.ports import In, Out


@flowrl.as_node
def scale(
    data: Batch, bias: object = None, *, by: float = flowrl.param(2.0, "factor", gt=0)
) -> Batch:
    """Scale the rewards."""
    return data.replace(reward=data["reward"] * by)


def test_the_function_stays_callable():
    batch = Batch({"reward": np.ones(2)})
    assert scale(batch, by=3.0)["reward"].tolist() == [3, 3]


def test_the_node_fires_with_its_parameters():
    node = scale.node(by=4.0)
    assert node.fire(Batch({"reward": np.ones(2)}), None)["reward"].tolist() == [4, 4]


def test_ports_and_parameters_are_those_of_the_signature():
    assert scale.node.ports == {
        "data": In("samples"),
        "bias": In("any", optional=True),
        "out": Out("samples"),
    }
    assert scale.node.Config.model_fields["by"].default == 2.0
    assert (scale.node.__doc__ or "").splitlines()[0] == "Scale the rewards."


def test_a_parameter_keeps_its_range():
    with pytest.raises(ValueError, match="greater than 0"):
        scale.node(by=0.0)


def test_the_output_has_the_columns_of_the_input_of_its_type():
    schema = {"reward": Column("float32")}
    config = scale.node.Config()
    facts = scale.node.describe(config, Surroundings({"data": schema}, {}, frozenset({"out"})))
    assert facts.outs == {"out": schema}

    @flowrl.as_node
    def count(data: Batch) -> int:
        return len(data)

    facts = count.node.describe(
        count.node.Config(), Surroundings({"data": schema}, {}, frozenset())
    )
    assert facts.outs == {"out": None}  # not a table


def test_a_function_that_returns_nothing_has_no_output():
    @flowrl.as_node
    def look(data: Batch) -> None:
        """Look."""

    assert list(look.node.ports) == ["data"]


def test_an_optional_batch_is_a_table():
    @flowrl.as_node
    def mix(data: Batch, more: Batch | None = None) -> Batch:
        return data

    assert mix.node.ports["more"] == In("samples", optional=True)


def test_a_function_that_cannot_be_a_node_is_refused():
    with pytest.raises(TypeError, match="nothing: a node function takes at least one positional"):

        @flowrl.as_node
        def nothing(*, low: float = 1.0) -> None:
            """Has no input."""

    with pytest.raises(TypeError, match=r"star: a node function names its inputs, not '\*data"):

        @flowrl.as_node
        def star(*data: object) -> None:
            """Has any number of inputs."""

    with pytest.raises(TypeError, match="'seed' is a word of the graph format"):

        @flowrl.as_node
        def seeded(data: object, *, seed: int = 1) -> None:
            """Has a parameter that every graph has."""
