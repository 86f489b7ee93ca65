"""Parameters from the graph file: written items to a checked `Config`, every mistake with its place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from flowrl.catalogue import Catalogue, UnknownType
from flowrl.config import REQUIRED, Config, PartSpec
from flowrl.errors import Problem, nearest
from flowrl.tree import merge
from flowrl.yamlfile import Item, item_of

Shared = Mapping[str, Item]  # sections at the top of the graph


def extra(info: FieldInfo) -> Mapping[str, Any]:
    """What `param` and `part` noted beside a field."""
    found = info.json_schema_extra
    return found if isinstance(found, dict) else {}


def part_fields(config: type[Config]) -> dict[str, Mapping[str, Any]]:
    """The parameters of a config that are parts."""
    return {n: extra(i) for n, i in config.model_fields.items() if "part" in extra(i)}


class ParamReader:
    """Builds configs; collects problems, and which shared sections were used."""

    def __init__(self, catalogue: Catalogue, problems: list[Problem]) -> None:
        self.catalogue, self.problems = catalogue, problems
        self.used: set[str] = set()

    def problem(self, item: Item, what: str, hint: str = "", key: bool = False) -> None:
        problem = Problem(str(item.at if key else item.mark), what, hint)
        if (
            problem not in self.problems
        ):  # a shared section is read once for each node that takes it
            self.problems.append(problem)

    def config(self, cls: type[Config], written: Item, shared: Shared, path: str) -> Config | None:
        """The config that the written parameters make; None if something is wrong with them."""
        before = len(self.problems)
        values: dict[str, Any] = {}
        parts = part_fields(cls)
        for name, item in written.fields.items():
            if name not in cls.model_fields:
                self.unknown(name, item, cls, parts, path)
            elif name not in parts:
                values[name] = _given(cls.model_fields[name], item)
        for name, about in parts.items():
            spec = self.part(name, about, written, shared, path)
            if spec is not REQUIRED:
                values[name] = spec
        if len(self.problems) > before:
            values = {k: v for k, v in values.items() if k in cls.model_fields}
            self.validate(cls, values, written, path, missing=parts)
            return None
        return self.validate(cls, values, written, path)

    def unknown(
        self,
        name: str,
        item: Item,
        cls: type[Config],
        parts: Mapping[str, Mapping[str, Any]],
        path: str,
    ) -> None:
        hint = nearest(name, cls.model_fields)
        for part, about in parts.items():
            if "did you mean" not in hint and about["shared"]:
                hint = f"{hint}; a parameter of the {about['part']} goes under '{part}:'"
        self.problem(item, f"{path}: unknown key '{name}'", hint, key=True)

    def part(
        self, name: str, about: Mapping[str, Any], written: Item, shared: Shared, path: str
    ) -> Any:
        """The part that a parameter names: what the node writes, laid over the shared section or the default."""
        kind, section, default = about["part"], about["shared"], about["written"]
        own, item, place = written.fields.get(name), None, name
        if section and section in shared:
            self.used.add(section)
            item = as_mapping(shared[section])
        elif default not in (REQUIRED, None):
            item = as_mapping(item_of(default, written.mark))
            place = f"{path}.{name}"
        if own is not None and own.value is not None:
            item = as_mapping(own) if item is None else merge(item, as_mapping(own))
            place = f"{path}.{name}"
        elif own is not None or (item is None and default is None):
            return None
        if item is None:
            where = f", or as the section '{section}' at the top" if section else ""
            self.problem(
                written,
                f"{path}: missing required parameter '{name}'",
                f"give it here{where}",
                key=True,
            )
            return REQUIRED
        return self.part_spec(kind, item, default, shared, place)

    def part_spec(self, kind: str, item: Item, default: Any, shared: Shared, path: str) -> Any:
        if not isinstance(item.value, dict):
            self.problem(
                item,
                f"{path} is {short(item.plain())}",
                f"expected the {kind}'s type, or a mapping with it",
            )
            return REQUIRED
        type_item = item.fields.get("type")
        fallback = (
            as_mapping(item_of(default, item.mark)).fields.get("type")
            if default not in (REQUIRED, None)
            else None
        )
        named = type_item or fallback
        if named is None or not isinstance(named.value, str):
            self.problem(
                item, f"{path}: missing 'type'", nearest("", self.catalogue.names(kind)), key=True
            )
            return REQUIRED
        try:
            cls = self.catalogue.find(kind, named.value)
        except UnknownType as error:
            self.problem(named, f"{path}: {error.what}", error.hint)
            return REQUIRED
        rest = Item({k: v for k, v in item.fields.items() if k != "type"}, item.mark, item.key)
        config = self.config(cls.Config, rest, shared, path)
        return REQUIRED if config is None else PartSpec(named.value, cls, config)

    def validate(
        self, cls: type[Config], values: dict[str, Any], written: Item, path: str, missing: Any = ()
    ) -> Config | None:
        """Pydantic's verdict, told in our words; `missing` names what was told already."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            for e in error.errors(include_url=False):
                loc = e["loc"]
                if not (loc and loc[0] in missing):
                    self.invalid(e, written, path)
            return None

    def invalid(self, error: Any, written: Item, path: str) -> None:
        name = ".".join(str(part) for part in error["loc"])
        item = written
        for step in error["loc"]:
            below = item.fields.get(str(step)) if isinstance(item.value, dict) else None
            if isinstance(item.value, list) and isinstance(step, int) and step < len(item.items):
                below = item.items[step]
            item = below or item
        if error["type"] == "missing":
            self.problem(
                written,
                f"{path}: missing required parameter '{name}'",
                f"add '{name}: …'",
                key=True,
            )
            return
        said = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        if said.startswith("Input should "):
            wanted = said.removeprefix("Input should ").removeprefix("be ").replace("a valid", "a")
            wanted = {"a integer": "an integer"}.get(wanted, wanted)
            self.problem(item, f"{path}.{name} is {short(error['input'])}", f"expected {wanted}")
        else:
            self.problem(item, f"{path}{'.' + name if name else ''}: {said}")


def _given(info: FieldInfo, item: Item) -> Any:
    """A written value; a file is meant beside the graph file that names it."""
    value = item.plain()
    if isinstance(value, str) and extra(info).get("file") and item.mark.line:
        beside = Path(item.mark.file).parent / value
        return str(beside.resolve()) if beside.exists() else value
    return value


def as_mapping(item: Item) -> Item:
    """`policy: random` is short for `policy: {type: random}`."""
    if isinstance(item.value, str):
        return Item({"type": Item(item.value, item.mark)}, item.mark, item.key)
    return item


def short(value: Any) -> str:
    """A value as it is shown in a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def written_params(config: Config) -> dict[str, Any]:
    """A config as plain data that reads back as the same config: every default filled in."""
    return {name: written_value(getattr(config, name)) for name in type(config).model_fields}


def written_value(value: Any) -> Any:
    """One parameter as plain data."""
    if isinstance(value, PartSpec):
        return {"type": value.type, **written_params(value.config)}
    if isinstance(value, Config):
        return written_params(value)
    if isinstance(value, Mapping):
        return {k: written_value(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [written_value(v) for v in value]
    return value
