"""Nodes and parts that are made without an engine: errors of parameters and links."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import Part, param, part
from flowrl.core.node import Node
from flowrl.core.ports import In, Link


class Mill(Node):
    """Has all that a node can be given."""

    data = In("samples")
    water = Link("water")
    wind = Link("wind", optional=True)

    class Config(BaseConfig):
        grain: Any = part("grain", "what it grinds", default=None)
        stones: int = param(..., "how many", ge=1)
        speed: Literal["slow", "fast"] = param("slow", "how it turns")

    def fire(self, data: Any) -> None:
        """Grind."""


class Rye(Part):
    """A part with a parameter."""

    class Config(BaseConfig):
        weight: float = param(1.0, "of a grain", gt=0)


def test_parameters_and_links_are_given_by_keyword() -> None:
    mill = Mill(water="a brook", stones=2)
    assert (mill.water, mill.wind, mill.config.stones) == ("a brook", None, 2)
    assert Rye(weight=2.0).config.weight == 2.0


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"stone": 2}, TypeError, "Mill: unknown parameter 'stone'; did you mean 'stones'?"),
        ({}, ValueError, "Mill: missing required parameter 'stones'"),
        ({"stones": "2"}, ValueError, "Mill.stones is '2'; expected an integer"),
        (
            {"stones": 0, "speed": "swift"},
            ValueError,
            "Mill.stones is 0; expected greater than or equal to 1\n"
            "Mill.speed is 'swift'; expected 'slow' or 'fast'",
        ),
    ],
)
def test_a_wrong_parameter_is_named(given: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as raised:
        Mill(water="a brook", **given)
    assert str(raised.value) == words


def test_a_wrong_parameter_of_a_part_is_named() -> None:
    with pytest.raises(ValueError, match=r"^Rye.weight is -1; expected greater than 0$"):
        Rye(weight=-1)


def test_a_required_link_must_be_given() -> None:
    with pytest.raises(TypeError, match="Mill: missing the link 'water'; give it by keyword"):
        Mill(stones=2)
