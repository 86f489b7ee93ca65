"""Reads the parameters of a node or part into a checked `Config`, and reports every mistake with its location."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from flowrl.core.config import (
    REQUIRED,
    Config,
    PartSpec,
    describe_validation_error,
    describe_without_effect,
    field_extras,
    params_without_effect,
)
from flowrl.core.errors import Problems, closest_word, shortened_repr, spelling_hint
from flowrl.core.facts import UnsoundError
from flowrl.graph.catalogue import Catalogue, UnknownTypeError
from flowrl.graph.tree import as_mapping, merge
from flowrl.graph.yaml_text import YamlValue, item_of
from flowrl.graph.yaml_writer import flow_text

Shared = Mapping[str, YamlValue]  # sections at the top of the graph


def part_fields(config: type[Config]) -> dict[str, Mapping[str, Any]]:
    """The parameters of a config that are parts."""
    return {n: field_extras(i) for n, i in config.model_fields.items() if "part" in field_extras(i)}


def parts_fields(config: type[Config]) -> dict[str, str]:
    """The parameters of a config that are lists of parts, each with the kind of part."""
    fields = config.model_fields.items()
    return {n: str(field_extras(i)["parts"]) for n, i in fields if "parts" in field_extras(i)}


def named_parts_fields(config: type[Config]) -> dict[str, Mapping[str, Any]]:
    """The parameters of a config that are mappings of names to parts."""
    found = {n: field_extras(info) for n, info in config.model_fields.items()}
    return {n: extras for n, extras in found.items() if "named_parts" in extras}


def section_users(config: Config) -> dict[str, str]:
    """The parts of a config that can be taken from a section at the top, each by its path, with the section's name."""
    found = {
        name: str(about["shared"])
        for name, about in part_fields(type(config)).items()
        if getattr(config, name) is not None
    }
    for name, about in named_parts_fields(type(config)).items():
        found |= dict.fromkeys((f"{name}.{key}" for key in getattr(config, name)), about["shared"])
    return {path: section for path, section in found.items() if section}


def part_default(about: Mapping[str, Any]) -> str | None:
    """The type of a part where the graph gives none."""
    default = about["written"]
    named = default.get("type") if isinstance(default, Mapping) else default
    return named if isinstance(named, str) else about["usual_type"]


class ParamReader:
    """Builds configs; collects problems, and the shared sections that were used and that could be.

    `folders` are those of the graph file and of the files that it extends, in which data files are looked for.
    """

    def __init__(self, catalogue: Catalogue, problems: Problems) -> None:
        self.catalogue, self.problems = catalogue, problems
        self.folders: tuple[Path, ...] = ()
        self.known_sections: set[str] = set()  # which the types in the graph can take
        self.used_sections: set[str] = set()

    def report(self, item: YamlValue, what: str, hint: str = "", key: bool = False) -> None:
        self.problems.add(item.entry_location if key else item.location, what, hint)

    def read_config(
        self,
        cls: type[Config],
        written: YamlValue,
        shared: Shared,
        path: str,
        also: Iterable[str] = (),
    ) -> Config | None:
        """The config that the written parameters make; None, and problems, if something is wrong with them.

        `also` are other valid keys, for hints.
        """
        before = len(self.problems)
        parts, several, named = part_fields(cls), parts_fields(cls), named_parts_fields(cls)
        sections = (about["shared"] for about in (*parts.values(), *named.values()))
        self.known_sections |= {*sections} - {""}
        values: dict[str, Any] = {}
        for name, item in written.fields.items():
            if name not in cls.model_fields:
                self.report_unknown_key(name, item, cls, path, also)
            elif name in several:
                values[name] = self.read_parts(several[name], item, shared, f"{path}.{name}")
            elif name in named:
                values[name] = self.read_named_parts(named[name], item, shared, f"{path}.{name}")
            elif name not in parts:
                values[name] = self.written_value_of(cls.model_fields[name], item)
        for name, about in parts.items():
            spec = self.read_part(name, about, written, shared, path)
            if spec is not REQUIRED:
                values[name] = spec
        sound = len(self.problems) == before
        reported = () if sound else {*parts, *named} & {*values, *parts}
        config = self.validate(cls, values, written, path, reported)
        return config if sound else None

    def written_value_of(self, info: FieldInfo, item: YamlValue) -> Any:
        """A written value. The relative path of a file begins at the first of these folders that has the file.

        They are that of the graph file that names it, the working folder, and those of the other graph files.
        """
        value = item.plain()
        if not value or not isinstance(value, str) or not field_extras(info).get("file"):
            return value
        beside = [Path(item.location.file).parent] if item.location.line else []
        others = [] if os.path.exists(value) else self.folders
        paths = (folder / value for folder in (*beside, *others))
        found = next(filter(os.path.exists, paths), None)
        return value if found is None else str(found.resolve())

    def report_unknown_key(
        self, name: str, item: YamlValue, cls: type[Config], path: str, also: Iterable[str]
    ) -> None:
        hint = spelling_hint(name, [*cls.model_fields, *also])
        for part, about in part_fields(cls).items():
            if "did you mean" not in hint and about["shared"]:
                hint = f"{hint}; a parameter of the {about['part']} goes under '{part}:'"
        self.report(item, f"{path}: unknown key '{name}'", hint, key=True)

    def read_part(
        self, name: str, about: Mapping[str, Any], written: YamlValue, shared: Shared, path: str
    ) -> Any:
        """The part that a parameter names: the values of the node, merged over the shared section or the default."""
        section, default = about["shared"], about["written"]
        own, item, place = written.fields.get(name), None, name
        if own is not None and own.value is None and default is None:
            return None
        if section and section in shared:
            self.used_sections.add(section)
            item, place = as_mapping(shared[section]), section
        elif default not in (REQUIRED, None):
            item, place = as_mapping(item_of(default, written.location)), f"{path}.{name}"
        if own is not None:
            item = as_mapping(own) if item is None else merge(item, as_mapping(own))
            place = f"{path}.{name}"
        if item is not None:
            return self.make_part_spec(about["part"], item, part_default(about), shared, place)
        if default is None:
            return None
        hint = "give it here" + (f", or as the section '{section}' at the top" if section else "")
        self.report(written, f"{path}: missing required parameter '{name}'", hint, key=True)
        return REQUIRED

    def read_parts(
        self, kind: str, written: YamlValue, shared: Shared, path: str
    ) -> tuple[Any, ...]:
        """A list of parts, in its order."""
        if not isinstance(written.value, list):
            hint = f"expected a list of {kind}s, such as [{{type: …}}]"
            self.report(written, f"{path} is {shortened_repr(written.plain())}", hint)
            return ()
        items = [as_mapping(item) for item in written.items]
        made = [
            self.make_part_spec(kind, m, None, shared, f"{path}[{i}]") for i, m in enumerate(items)
        ]
        return tuple(made)

    def read_named_parts(
        self, about: Mapping[str, Any], written: YamlValue, shared: Shared, path: str
    ) -> dict[str, Any]:
        """A mapping of names to parts, each merged over the shared section."""
        kind, section = about["named_parts"], about["shared"]
        if not isinstance(written.value, dict) or not (written.fields or about["optional"]):
            what = f"{path} is {shortened_repr(written.plain())}"
            self.report(written, what, f"expected a {kind} for each name, {{NAME: {{type: …}}}}")
            return {}
        found = {}
        for name, item in written.fields.items():
            own = as_mapping(YamlValue({}, item.location) if item.value is None else item)
            if section in shared:
                self.used_sections.add(section)
                own = merge(as_mapping(shared[section]), own)
            found[name] = self.make_part_spec(kind, own, None, shared, f"{path}.{name}")
        return found

    def make_part_spec(
        self, kind: str, item: YamlValue, default: str | None, shared: Shared, path: str
    ) -> Any:
        if not isinstance(item.value, dict):
            hint = f"expected the {kind}'s type, or a mapping with it"
            self.report(item, f"{path} is {shortened_repr(item.plain())}", hint)
            return REQUIRED
        named = item.fields.get("type", YamlValue(default, item.location))
        if not isinstance(named.value, str):
            what = f"{path}: missing 'type'"
            if named.value is not None:
                what = f"{path}.type is {shortened_repr(named.plain())}"
            self.report(named, what, spelling_hint("", self.catalogue.names(kind)))
            return REQUIRED
        try:
            cls = self.catalogue.find(kind, named.value)
        except UnknownTypeError as error:
            meant = self.usual_type_with(named.value, kind, default, path)
            hints = [error.hint] if ":" in named.value or not meant else []
            hints += [f"write `{meant}`"] if meant else []
            self.report(named, f"{path}: {error.what}", ", or ".join(hints))
            return REQUIRED
        rest = YamlValue(
            {k: v for k, v in item.fields.items() if k != "type"}, item.location, item.key_location
        )
        config = self.read_config(cls.Config, rest, shared, path, also=("type",))
        return REQUIRED if config is None else PartSpec(named.value, cls, config)

    def usual_type_with(self, word: str, kind: str, usual: str | None, path: str) -> str:
        """The part of the usual type that a word probably means: `env: {id: CartPole-v1}` for `env: CartPole-v1`.

        Empty if the word is close to a type, or if the usual type does not have exactly one required parameter.
        """
        if usual is None or closest_word(word, self.catalogue.names(kind)) is not None:
            return ""
        fields = self.catalogue.find(kind, usual).Config.model_fields.items()
        required = [name for name, info in fields if info.is_required()]
        key = path.rpartition(".")[2]
        return f"{key}: {{{required[0]}: {flow_text(word)}}}" if len(required) == 1 else ""

    def validate(
        self,
        cls: type[Config],
        values: dict[str, Any],
        written: YamlValue,
        path: str,
        reported: Container[str] = (),
    ) -> Config | None:
        """The config, checked by pydantic. Problems of the parameters in `reported` are not reported again."""
        try:
            config = cls.model_validate(values)
        except ValidationError as error:
            for e in error.errors(include_url=False):
                if not (e["loc"] and e["loc"][0] in reported):
                    self.report_invalid(e, written, path, cls)
        except Exception as error:  # a validator of the type may raise anything
            self.report(written, f"{path}: its validator raised {type(error).__name__}: {error}")
        else:
            for name, other in params_without_effect(config).items():
                what, hint = describe_without_effect(path, name, other)
                self.report(written.fields.get(name, written), what, hint, key=True)
            return config
        return None

    def report_invalid(self, error: Any, written: YamlValue, path: str, cls: type[Config]) -> None:
        what, hint = describe_validation_error(path, cls, error)
        if error["type"] == "missing":
            name = ".".join(map(str, error["loc"]))
            self.report(written, what, f"add '{name}: …'", key=True)
        else:
            steps = (*error["loc"], *_refused_parameter(error))
            self.report(_innermost_value(written, steps), what, hint)


def _refused_parameter(error: Any) -> list[str]:
    """The path of the parameter that a type's own validator names, from the config that has the validator."""
    cause = error.get("ctx", {}).get("error")
    return cause.key.split(".") if isinstance(cause, UnsoundError) else []


def _innermost_value(item: YamlValue, steps: Iterable[Any]) -> YamlValue:
    """The innermost written value on the path to an error."""
    for step in steps:
        if step in item.fields:
            item = item.fields[step]
        elif isinstance(step, int) and step < len(item.items):
            item = item.items[step]
    return item
