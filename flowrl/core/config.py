"""Parameters of nodes and parts, each declared once with its default, its range and its meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticUndefined

from flowrl.core.errors import shortened_repr, spelling_hint

REQUIRED: Any = PydanticUndefined


class Config(BaseModel):
    """The parameters of a node or a part: no others are allowed, each has a type, and none changes."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )


BaseConfig = Config  # for classes whose own `Config` hides the name


def param(
    default: Any, about: str, *, phase: bool = False, file: bool = False, **limits: Any
) -> Any:
    """A parameter with its meaning and its range (`ge`, `gt`, `le`, `lt`, `min_length`, …).

    `phase=True` lets a warm-up phase set it; the node's `reconfigure` is then called where the phase begins and ends.
    `file=True` is a file to read; a relative path is resolved beside the graph file that names it.
    """
    return Field(
        default, description=about, json_schema_extra={"phase": phase, "file": file}, **limits
    )


def part(
    kind: str, about: str, *, shared: str = "", default: Any = REQUIRED, phase: bool = False
) -> Any:
    """A parameter that is a part (a policy, a model, an env) with a type and parameters of its own.

    `shared` names the section at the top of the graph that the part is taken from. What the node gives is laid over it.
    `default` is written as in YAML: a type's name, or a mapping with `type`.
    """
    extra = {"part": kind, "shared": shared, "phase": phase, "written": default}
    if default is REQUIRED:
        return Field(description=about, json_schema_extra=extra)
    return Field(None, description=about, json_schema_extra=extra)


def parts(kind: str, about: str) -> Any:
    """A parameter that is a list of parts, each with a type and parameters of its own."""
    return Field(default=(), description=about, json_schema_extra={"parts": kind})


def make_config(owner: str, config: type[Config], params: Mapping[str, Any]) -> Config:
    """The config of parameters that a program gives. Errors use the words of a graph's errors."""
    for name in params:
        if name not in config.model_fields:
            raise TypeError(
                f"{owner}: unknown parameter '{name}'; {spelling_hint(name, config.model_fields)}"
            )
    try:
        return config(**params)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        problems = [describe_validation_error(owner, config, one) for one in errors]
    raise ValueError("\n".join("; ".join(filter(None, problem)) for problem in problems))


def describe_validation_error(owner: str, cls: type[BaseModel], error: Any) -> tuple[str, str]:
    """What is wrong, by an error of pydantic, and what was expected (empty if the first says it)."""
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return f"{owner}: missing required parameter '{name}'", ""
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if message.startswith("Input should "):
        expected = message.removeprefix("Input should ").removeprefix("be ").replace("a valid", "a")
        expected = {"a integer": "an integer"}.get(expected, expected)
        return f"{owner}.{name} is {shortened_repr(error['input'])}", f"expected {expected}"
    if error["type"] in ("string_pattern_mismatch", "string_too_short"):
        meaning = cls.model_fields[error["loc"][0]].description
        return f"{owner}.{name} is {shortened_repr(error['input'])}", f"expected {meaning}"
    return f"{owner}{'.' + name if name else ''}: {message}", ""


class Part:
    """A configured thing that is not a node, such as a policy. It has a kind, a type's name, and parameters."""

    kind: ClassVar[str] = ""
    Config: ClassVar[type[BaseConfig]] = BaseConfig

    def __init__(self, config: BaseConfig | None = None, /, **params: Any) -> None:
        self.config: Any = (
            config if config is not None else make_config(type(self).__name__, self.Config, params)
        )


PartType = type[Part]


@dataclass(frozen=True, slots=True)
class PartSpec:
    """A part as the graph gives it, not made yet."""

    type: str
    cls: PartType
    config: Config

    def make(self, *args: Any, **kwargs: Any) -> Any:
        return self.cls(self.config, *args, **kwargs)
