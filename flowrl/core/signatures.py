"""What `help` and `inspect.signature` show of nodes and parts: the parameters that their `Config` declares."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from inspect import Parameter, Signature
from typing import Any, get_type_hints

from pydantic.fields import FieldInfo

from flowrl.core.ports import Link

OF_THE_ENGINE = ("config", "context")  # keywords that only the engine passes


class KeywordSignature:
    """The signature of a class whose parameters are those of its `Config`; the attribute `__signature__`."""

    def __get__(self, instance: Any, owner: type[Any]) -> Signature:
        # `inspect` also asks instances, which are called in their own way, and classes that declare a signature.
        if instance is not None or not takes_keywords(owner):
            raise AttributeError("__signature__")
        keywords = [*_declared_keywords(owner)]
        required = [p for p in keywords if p.default is Parameter.empty]
        optional = [p for p in keywords if p.default is not Parameter.empty]
        return Signature([*required, *_links(owner), *_config_keywords(owner), *optional])


class ParameterDoc:
    """The docstring of a class, followed by its parameters with their meanings and defaults."""

    def __init__(self, written: str | None) -> None:
        self.written = written

    def __get__(self, instance: Any, owner: type[Any]) -> str:
        text = inspect.cleandoc(written_doc(owner))
        if not takes_keywords(owner):
            return text
        fields = owner.Config.model_fields
        lines = [f"    {name}: {_meaning(info)}" for name, info in fields.items()]
        lines[:0] = [
            f"    {link.name}: {_port_meaning(owner, link.name)}" for link in _links(owner)
        ]
        return "\n".join([text, "", "Parameters:", *lines]) if lines else text


def document_parameters(cls: type[Any]) -> None:
    """Let the docstring of a class name its parameters."""
    cls.__doc__ = ParameterDoc(vars(cls).get("__doc__"))  # type: ignore[assignment]


def written_doc(cls: type[Any]) -> str:
    """The docstring of a class as it is written, or that of the nearest base which has one."""
    for base in cls.__mro__[:-1]:
        doc = vars(base).get("__doc__")
        written = doc.written if isinstance(doc, ParameterDoc) else doc
        if written:
            return str(written)
    return ""


def takes_keywords(cls: type[Any]) -> bool:
    """Whether the class is made with the parameters of its `Config`; a subclass may define another `__init__`."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    return any(p.kind is Parameter.VAR_KEYWORD for p in parameters)


def refuse_positional(cls: type[Any], args: tuple[Any, ...]) -> None:
    """Raise an error that names the keywords, if a class that takes keywords was given something by position."""
    if not args or not takes_keywords(cls):
        return
    names = list(inspect.signature(cls).parameters)
    shown = ", ".join(f"{name}=…" for name in names[:6]) + (", …" if len(names) > 6 else "")
    given = ", ".join(type(value).__name__ for value in args)
    raise TypeError(
        f"{cls.__name__} takes its parameters by keyword, {cls.__name__}({shown}); got by position: {given}"
    )


def _declared_keywords(cls: type[Any]) -> Iterator[Parameter]:
    """The keywords that the constructors of a class and its bases declare, such as a policy's `obs`."""
    for base in cls.__mro__:
        init = vars(base).get("__init__")
        if init is None or base is object:
            continue
        for parameter in inspect.signature(init).parameters.values():
            if parameter.kind is Parameter.KEYWORD_ONLY and parameter.name not in OF_THE_ENGINE:
                yield parameter


def _links(cls: type[Any]) -> Iterator[Parameter]:
    for name, port in getattr(cls, "ports", {}).items():
        if isinstance(port, Link):
            default = None if port.optional else Parameter.empty
            yield Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Any)


def _config_keywords(cls: type[Any]) -> Iterator[Parameter]:
    for name, info in cls.Config.model_fields.items():
        default = Parameter.empty if info.is_required() else info.get_default()
        annotation = _without_validators(info.annotation)
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _without_validators(annotation: Any) -> Any:
    """The type without what is attached to it or to its arguments by `Annotated`, which shows memory addresses."""

    def holder() -> None: ...

    holder.__annotations__ = {"value": annotation}
    return get_type_hints(holder)["value"]


def _meaning(info: FieldInfo) -> str:
    """What a parameter means, and its default; that of a part as it is written in a graph."""
    extras, about = info.json_schema_extra, info.description or ""
    default = extras.get("written", info.default) if isinstance(extras, dict) else info.default
    shown = "required" if info.is_required() else f"default: {default!r}"
    return f"{about} ({shown})" if about else shown


def _port_meaning(cls: type[Any], name: str) -> str:
    port = cls.ports[name]
    return port.about or f"a node with the service '{port.type}'"
