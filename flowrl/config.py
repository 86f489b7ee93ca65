"""Parameters: what a node or a part can be told, each declared once with its default, range and meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticUndefined

REQUIRED: Any = PydanticUndefined


class Config(BaseModel):
    """The parameters of a node or a part: closed, typed, immutable."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )


BaseConfig = Config  # for classes whose own `Config` hides the name


def param(
    default: Any, about: str, *, phase: bool = False, file: bool = False, **limits: Any
) -> Any:
    """A parameter with its meaning and its range (`ge`, `gt`, `le`, `lt`, `min_length`, …).

    `phase=True` lets a warm-up phase set it: the node's `reconfigure` is then called at the phase's edges.
    `file=True` is a file to read: a relative path means beside the graph file that names it.
    """
    return Field(
        default, description=about, json_schema_extra={"phase": phase, "file": file}, **limits
    )


def part(
    kind: str, about: str, *, shared: str = "", default: Any = REQUIRED, phase: bool = False
) -> Any:
    """A parameter that is a part (a policy, a model, an env) with a type and parameters of its own.

    `shared` names the section at the top of the graph that it is taken from (and laid over) where the
    node does not give it. `default` is what is written in YAML: a type's name, or a mapping with `type`.
    """
    extra = {"part": kind, "shared": shared, "phase": phase, "written": default}
    if default is REQUIRED:
        return Field(description=about, json_schema_extra=extra)
    return Field(None, description=about, json_schema_extra=extra)


def parts(kind: str, about: str) -> Any:
    """A parameter that is a list of parts, each with a type and parameters of its own."""
    return Field(default=(), description=about, json_schema_extra={"parts": kind})


class Part:
    """A described thing that is not a node: it has a kind, a type's name, and parameters."""

    kind: ClassVar[str] = ""
    Config: ClassVar[type[BaseConfig]] = BaseConfig

    def __init__(self, config: BaseConfig | None = None, /, **params: Any) -> None:
        self.config: Any = config if config is not None else self.Config(**params)


PartType = type[Part]


@dataclass(frozen=True, slots=True)
class PartSpec:
    """A part as the graph gives it: not made yet."""

    type: str
    cls: PartType
    config: Config

    def make(self, *args: Any, **kwargs: Any) -> Any:
        """The part itself."""
        return self.cls(self.config, *args, **kwargs)
