"""Nodes and parts that are made without an engine: errors of parameters and links."""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, BeforeValidator, ConfigDict

from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import Part, make_config, param, part
from flowrl.core.node import Node
from flowrl.core.ports import In, Link
from flowrl.core.signatures import written_doc


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

    kind = "flour"

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


def test_a_number_that_does_not_fit_into_float32_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weight is 1e\+39; expected at most 1e\+30, so that"):
        Rye(weight=1e39)
    assert Rye(weight=1e30).config.weight == 1e30


def test_a_required_link_must_be_given() -> None:
    with pytest.raises(TypeError, match="Mill: missing the link 'water'; give it by keyword"):
        Mill(stones=2)


class Grain(Part):
    """Has a parameter that depends on another one."""

    kind = "grain"

    class Config(BaseConfig):
        dried: bool = param(True, "whether it is dried")
        hours: int = param(3, "of drying", ge=1, only_with="dried")


def test_a_parameter_without_effect_is_refused_unless_it_has_its_default() -> None:
    assert Grain(hours=5).config.hours == 5
    assert Grain(dried=False, hours=3).config.hours == 3
    what = "Grain: 'hours' has no effect without 'dried'"
    with pytest.raises(ValueError, match=f"^{what}; leave it out, or give 'dried' as well$"):
        Grain(dried=False, hours=5)


class Flour(Grain):
    """Has no use for a parameter of its base, and one that is fixed."""

    class Config(Grain.Config):
        dried: Literal[True] = param(True, "flour is dry")
        hours: None = param(None, "none: it is dried before")  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hours": 5}, r"Flour.hours is 5; leave it out \(none: it is dried before\)"),
        ({"dried": False}, r"Flour.dried is False; leave it out \(flour is dry\)"),
    ],
)
def test_a_parameter_that_has_one_value_is_refused_with_the_reason(
    given: dict[str, Any], message: str
) -> None:
    assert Flour().config.hours is None
    with pytest.raises(ValueError, match=f"^{message}$"):
        Flour(**given)


# what help and completion show


class Bread(Rye):
    """Made of rye."""

    class Config(Rye.Config):
        flour: Any = part("flour", "what is baked", default="rye")
        salt: float | None = param(None, "grams")

    def __init__(self, config: BaseConfig | None = None, /, *, oven: str, **params: Any) -> None:
        super().__init__(config, **params)
        self.oven = oven


class Slice(Bread):
    def __init__(self, bread: Bread) -> None:
        super().__init__(oven=bread.oven)


def test_a_signature_has_links_and_parameters_with_types_and_defaults() -> None:
    assert str(inspect.signature(Mill)) == (
        "(*, water: Any, wind: Any = None, grain: Any = None, stones: int, "
        "speed: Literal['slow', 'fast'] = 'slow', seed: 'int' = 0)"
    )
    assert str(inspect.signature(Bread)) == (
        "(*, oven: 'str', weight: float = 1.0, flour: Any = None, salt: float | None = None)"
    )


def test_a_signature_shows_types_without_their_validators() -> None:
    """A validator is a function, whose text has an address of memory."""

    class Oven(Part):
        class Config(BaseConfig):
            heat: dict[str, Annotated[float | None, BeforeValidator(lambda v: v)]] = param(
                {}, "by hour"
            )

    assert str(inspect.signature(Oven)) == "(*, heat: dict[str, float | None] = {})"


def test_a_class_with_a_constructor_of_its_own_keeps_its_signature() -> None:
    bread = Bread(oven="wood")
    assert list(inspect.signature(Slice).parameters) == ["bread"]
    assert Slice(bread).oven == "wood"
    assert Slice.__doc__ == "Made of rye."


def test_help_says_what_each_parameter_means() -> None:
    shown = pydoc.render_doc(Bread, renderer=pydoc.plaintext)
    assert " |  Made of rye." in shown
    assert " |      weight: of a grain (default: 1.0)" in shown
    assert " |      flour: what is baked (default: 'rye')" in shown
    mill = Mill.__doc__ or ""
    assert "    water: a node with the service 'water'" in mill
    assert "    stones: how many (required)" in mill


def test_a_docstring_is_kept_as_it_is_written() -> None:
    assert written_doc(Bread) == "Made of rye."
    assert written_doc(Mill) == "Has all that a node can be given."
    assert (Node.__doc__ or "").startswith("The base of all nodes.")


# wrong calls


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: Mill("a brook", 2),
            "Mill takes its parameters by keyword, Mill(water=…, wind=…, grain=…, stones=…, speed=…, seed=…); "
            "got by position: str, int",
        ),
        (
            lambda: Rye(2.0),
            "Rye takes its parameters by keyword, Rye(weight=…); got by position: float",
        ),
        (
            lambda: Bread(Bread.Config(), "wood"),
            "Bread takes its parameters by keyword, Bread(oven=…, weight=…, flour=…, salt=…); "
            "got by position: str",
        ),
        (
            lambda: Bread(oven="", flour=Rye),
            "Bread.flour is the class Rye; expected an object of it: Rye(…)",
        ),
        (
            lambda: Mill(water="", stones=1, grain=Rye()),
            "Mill.grain is the flour Rye; expected: grain",
        ),
    ],
)
def test_a_wrong_call_says_what_is_wanted(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(TypeError) as raised:
        call()
    assert str(raised.value) == words


def test_an_unknown_key_within_a_parameter_is_named_with_the_nearest_one() -> None:
    class Rule(BaseModel):
        model_config = ConfigDict(extra="forbid")
        tau: float = 0.1

    class Ruled(BaseConfig):
        rule: Rule = param(Rule(), "how it follows")

    with pytest.raises(ValueError, match=r"^node\.rule: unknown key 'taw'; did you mean 'tau'"):
        make_config("node", Ruled, {"rule": {"taw": 0.2}})
