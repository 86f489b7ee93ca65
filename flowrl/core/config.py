"""Parameters of nodes and parts, each declared once with its default, its range and its meaning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from flowrl.core.errors import shortened_repr, spelling_hint
from flowrl.core.facts import UnsoundError
from flowrl.core.signatures import KeywordSignature, document_parameters, refuse_positional

if TYPE_CHECKING:
    from typing_extensions import Self

REQUIRED: Any = PydanticUndefined
LARGEST_NUMBER = 1e30  # float32 holds 3.4e38; ranges, sums and products have to fit as well
# Kinds for which other things may stand, such as functions that make envs. The owner of the parameter checks them.
CHECKED_BY_OWNERS = ("env", "policy", "model")


class Config(BaseModel):
    """The base of parameters: unknown names and wrong types are refused, and values do not change."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )

    @model_validator(mode="after")
    def _check_magnitudes(self) -> Config:
        """Refuse numbers that are infinite, or become so, where they are used: in arrays of float32."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, float) and abs(value) > LARGEST_NUMBER:
                hint = f"expected at most {LARGEST_NUMBER:g}, so that results fit into float32"
                raise UnsoundError(f"{name} is {value:g}", hint, name)
        return self


BaseConfig = Config  # for classes whose own `Config` hides the name


def param(
    default: Any,
    about: str,
    *,
    phase: bool = False,
    file: bool = False,
    output: bool = False,
    replaced_by: str = "",
    only_with: str = "",
    only_acting: bool = False,
    **limits: Any,
) -> Any:
    """Declare a parameter with its meaning and its range (`ge`, `gt`, `le`, `lt`, `min_length`, …).

    With `phase`, a warm-up phase may set the parameter; the node's `reconfigure` is called when the phase begins and
    ends. With `file`, the value is the path of a file to read; a relative path is relative to the graph file.
    With `output`, it is the path of a file or folder that the node writes, outside of the run's folder.
    `replaced_by` names an optional link: where it is connected, the parameter has no effect and must not be given.
    `only_with` names another parameter, or an optional input of the node: where that one is null, false or 0, or not
    connected, this one has no effect and must keep its default. Of a policy, `only_acting` says that whoever acts
    reads the parameter, and the learner does not.
    """
    extra: dict[str, Any] = {
        "phase": phase,
        "file": file,
        "output": output,
        "replaced_by": replaced_by,
        "only_with": only_with,
        "only_acting": only_acting,
    }
    return Field(default, description=about, json_schema_extra=extra, **limits)


def part(
    kind: str,
    about: str,
    *,
    shared: str = "",
    default: Any = REQUIRED,
    phase: bool = False,
    usual_type: str | None = None,
    made_to_describe: bool = True,
    replaced_by: str = "",
    reads: tuple[str, ...] = (),
) -> Any:
    """Declare a parameter that is a part (a policy, a model, an env) with a type and parameters of its own.

    `shared` names a section at the top of the graph. The part is this section, overridden by the keys that the node
    sets. `default` is written as in YAML: a type's name, or a mapping with `type`. With the default None there is no
    part if neither the section nor the node gives one; `usual_type` is the type of one that is given without a type.
    `made_to_describe` says whether the node's `describe` makes the part. Where envs must not be made, such nodes are
    not described. `phase` and `replaced_by` are as for `param`. `reads` names the parameters of the part that the node
    reads, if it does not read all: others have no effect, and may only repeat what is said elsewhere in the graph.
    """
    extra = {
        "part": kind,
        "shared": shared,
        "phase": phase,
        "written": default,
        "usual_type": usual_type,
        "made_to_describe": made_to_describe,
        "replaced_by": replaced_by,
        "reads": reads,
    }
    if default is REQUIRED:
        return Field(description=about, json_schema_extra=extra)
    return Field(None, description=about, json_schema_extra=extra)


def parts(kind: str, about: str, *, only_acting: bool = False, only_with: str = "") -> Any:
    """Declare a parameter that is a list of parts, each with a type and parameters of its own.

    `only_acting` and `only_with` are as for `param`.
    """
    extra: dict[str, Any] = {"parts": kind, "only_acting": only_acting, "only_with": only_with}
    return Field(default=(), description=about, json_schema_extra=extra)


def named_parts(kind: str, about: str, *, shared: str = "", optional: bool = False) -> Any:
    """Declare a parameter that is a mapping of names to parts, in the order in which they are written.

    It has at least one, unless it is `optional`; then the default is none. `shared` names a section at the top of the
    graph. Each part is this section, overridden by the keys that the node sets for it.
    """
    extra: dict[str, Any] = {"named_parts": kind, "shared": shared, "optional": optional}
    if optional:
        return Field({}, description=about, json_schema_extra=extra)
    return Field(description=about, json_schema_extra=extra)


def replaced_params(config: type[Config]) -> dict[str, str]:
    """The parameters that a link can take the place of, each with the link's name."""
    fields = config.model_fields.items()
    return {n: str(link) for n, i in fields if (link := field_extras(i).get("replaced_by"))}


def dependent_params(config: Config) -> dict[str, str]:
    """The parameters that differ from their defaults and depend on something, each with its name.

    That is another parameter, or an input of the node.
    """
    fields = type(config).model_fields
    needed = _declared_dependences(type(config)).items()
    given = {n: getattr(config, n) for n, _ in needed}
    is_default = {n: value == fields[n].default or value == [] for n, value in given.items()}
    return {n: other for n, other in needed if not is_default[n]}


@cache
def _declared_dependences(config: type[Config]) -> dict[str, str]:
    fields = config.model_fields.items()
    return {n: str(other) for n, i in fields if (other := field_extras(i).get("only_with"))}


def params_without_effect(config: Config) -> dict[str, str]:
    """The parameters that differ from their defaults without effect, each with the parameter that is off."""
    found = dependent_params(config).items()
    return {n: other for n, other in found if not getattr(config, other, True)}


def describe_without_effect(owner: str, name: str, other: str) -> tuple[str, str]:
    """What is wrong with a parameter that has no effect, and how to mend it."""
    what = f"{owner}: '{name}' has no effect without '{other}'"
    return what, f"leave it out, or give '{other}' as well"


def field_extras(info: FieldInfo) -> Mapping[str, Any]:
    """What `param`, `part`, `parts` or `named_parts` declared of a field besides its type, default and description."""
    found = info.json_schema_extra
    return found if isinstance(found, dict) else {}


def make_config(owner: str, config: type[Config], params: Mapping[str, Any]) -> Config:
    """Make the config of parameters that were passed in Python. Errors read like those of a graph file."""
    for name, value in params.items():
        if name not in config.model_fields:
            raise TypeError(
                f"{owner}: unknown parameter '{name}'; {spelling_hint(name, config.model_fields)}"
            )
        _check_parts(f"{owner}.{name}", field_extras(config.model_fields[name]), value)
    try:
        made = config(**params)
        unused = params_without_effect(made).items()
        problems = [describe_without_effect(owner, name, other) for name, other in unused]
    except ValidationError as error:
        errors = error.errors(include_url=False)
        problems = [describe_validation_error(owner, config, one) for one in errors]
    if not problems:
        return made
    raise ValueError("\n".join("; ".join(filter(None, problem)) for problem in problems))


def _check_parts(where: str, extras: Mapping[str, Any], value: Any) -> None:
    """Refuse what is no part of the kind, a class instead of an object, and a single part instead of several.

    Entries of a list or a mapping that are no parts are left to the owner of the parameter.
    """
    if "part" in extras and value is not None:
        kind = extras["part"]
        _check_part(where, kind, value)
        if not isinstance(value, Part | PartSpec) and kind not in CHECKED_BY_OWNERS:
            raise TypeError(
                f"{where} is {shortened_repr(value)}; expected: {kind}, an object of a class that `flowrl nodes` lists"
            )
    if "parts" in extras:
        kind = extras["parts"]
        if not isinstance(value, list | tuple):
            raise TypeError(f"{where} is {shortened_repr(value)}; expected a list of {kind}s")
        for one in value:
            _check_part(where, kind, one)
    if "named_parts" in extras:
        kind = extras["named_parts"]
        if not isinstance(value, Mapping) or not (value or extras["optional"]):
            found = shortened_repr(value)
            raise TypeError(f"{where} is {found}; expected a {kind} for each name, {{NAME: …}}")
        for name, one in value.items():
            _check_part(f"{where}[{name!r}]", kind, one)


def _check_part(where: str, kind: str, value: Any) -> None:
    if isinstance(value, type) and issubclass(value, Part):
        raise TypeError(
            f"{where} is the class {value.__name__}; expected an object of it: {value.__name__}(…)"
        )
    cls = value.cls if isinstance(value, PartSpec) else type(value)
    if issubclass(cls, Part) and cls.kind != kind:
        raise TypeError(f"{where} is the {cls.kind} {cls.__name__}; expected: {kind}")


def describe_validation_error(owner: str, cls: type[BaseModel], error: Any) -> tuple[str, str]:
    """Return what is wrong according to an error of pydantic, and what was expected; the latter may be empty."""
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return f"{owner}: missing required parameter '{name}'", ""
    if error["type"] == "extra_forbidden":
        *outer, key = error["loc"]
        known = _keys_below(cls, outer)
        where = ".".join(map(str, (owner, *outer)))
        return f"{where}: unknown key '{key}'", spelling_hint(str(key), known) if known else ""
    if error["type"] in ("none_required", "literal_error"):
        info = cls.model_fields[error["loc"][0]]
        if _has_one_value(info.annotation):
            what = f"{owner}.{name} is {shortened_repr(error['input'])}"
            return what, f"leave it out ({info.description})"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if message.startswith("Input should "):
        expected = message.removeprefix("Input should ").removeprefix("be ").replace("a valid", "a")
        expected = {"a integer": "an integer"}.get(expected, expected)
        return f"{owner}.{name} is {shortened_repr(error['input'])}", f"expected {expected}"
    if error["type"] in ("string_pattern_mismatch", "string_too_short"):
        meaning = cls.model_fields[error["loc"][0]].description
        return f"{owner}.{name} is {shortened_repr(error['input'])}", f"expected {meaning}"
    return f"{owner}{'.' + name if name else ''}: {message}", ""


def _keys_below(cls: type[BaseModel], path: Sequence[str | int]) -> Iterable[str]:
    """The keys of the parameter at a path, if it is a mapping with keys of its own."""
    for name in path:
        info = cls.model_fields.get(str(name))
        if info is None or not isinstance(info.annotation, type):
            return ()
        if not issubclass(info.annotation, BaseModel):
            return ()
        cls = info.annotation
    return cls.model_fields


def _has_one_value(annotation: Any) -> bool:
    """Whether only one value is of a type, as where a subclass has no use for a parameter of its base."""
    is_literal = get_origin(annotation) is Literal
    return annotation in (None, type(None)) or (is_literal and len(get_args(annotation)) == 1)


class Part:
    """The base of configured components that are not nodes, such as policies, models and envs."""

    kind: ClassVar[str] = ""
    Config: ClassVar[type[BaseConfig]] = BaseConfig
    __signature__ = KeywordSignature()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _check_config(cls)
        document_parameters(cls)

    def __new__(cls, *args: Any, **params: Any) -> Self:
        refuse_positional(cls, args[1:] if args and isinstance(args[0], BaseConfig) else args)
        return super().__new__(cls)

    def __init__(self, config: BaseConfig | None = None, /, **params: Any) -> None:
        self.config: Any = (
            config if config is not None else make_config(type(self).__name__, self.Config, params)
        )

    @classmethod
    def declared_needs(cls) -> Mapping[str, str]:
        """What its type needs of a graph, by topic, such as `columns`; `flowrl nodes` shows it."""
        return {}


PartType = type[Part]


def _check_config(cls: PartType) -> None:
    """Refuse a `Config` without the parameters that every part of the kind has, when the class is defined."""
    bases = [base for base in cls.__mro__ if issubclass(base, Part) and base.kind]
    for name in bases[-1].Config.model_fields if bases else ():
        if name not in cls.Config.model_fields:
            raise TypeError(
                f"{cls.__name__}.Config does not have the parameter '{name}', which every {cls.kind} has; "
                f"write `class Config({bases[-1].__name__}.Config)`"
            )


@dataclass(frozen=True, slots=True)
class PartSpec:
    """The type and the parameters of a part that is not constructed yet."""

    type: str
    cls: PartType
    config: Config

    def make(self, *args: Any, **kwargs: Any) -> Any:
        return self.cls(self.config, *args, **kwargs)
