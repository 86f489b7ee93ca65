"""The graph format as JSON schema (draft 2020-12), with which editors complete and check graphs.

The schema knows the registered types. A user's own type (`package.module:Class`) may have any parameters. A file that
extends another may leave out what the other one contains.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, cast

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo

from flowrl.core.config import REQUIRED, Config, field_extras
from flowrl.core.sizes import BYTES_PATTERN
from flowrl.core.written_config import written_value
from flowrl.graph.catalogue import Catalogue, type_summary
from flowrl.graph.keywords import EDGE_CHAIN, EDGE_END, FAILURES, PLACE, TORCH_THREADS
from flowrl.graph.model import EDGE_OPTIONS
from flowrl.graph.param_reader import part_default, part_fields
from flowrl.graph.places import MOST

Schema = dict[str, Any]

SCHEMA_FILE = "flowrl.schema.json"  # beside a graph whose first line names it
SCHEMA_COMMENT = f"# yaml-language-server: $schema={SCHEMA_FILE}\n"

_NODE = r"^[A-Za-z_][\w/-]*$"
_PLACE = f"^{PLACE}$"
_RANGE = r"^[1-9]\d*\.\.[1-9]\d*$"  # of replicas: 2..16
_PLACED = r"^[A-Za-z_][\w/-]*(\[\d+(-\d+)?\])?$"  # collector[0-63]
_CHAIN = f"^{EDGE_CHAIN}$"
_END = rf"^\s*{EDGE_END}\s*$"

SUBSTITUTED: Schema = {"type": "string", "pattern": r"\$\{"}  # ${name}
OWN_TYPE: Schema = {
    "type": "string",
    "pattern": r"^[\w./-]+:\w+$",
    "description": "your own: package.module:Class",
}
REMOVED: Schema = {
    "type": "null",
    "description": "a parameter of another type: null removes it from what the extended graph says",
}
PART_GRAPH: Schema = {"type": "string", "pattern": r"\.ya?ml$", "description": "a part-graph"}


def schema_text() -> str:
    """The JSON schema of graph files that use the built-in types, as the file that editors read."""
    return json.dumps(json_schema(Catalogue()), indent=2) + "\n"


def json_schema(catalogue: Catalogue) -> Schema:
    """The JSON schema of graph files that use the types of a catalogue."""
    kinds = [kind for kind in catalogue.kinds() if kind != "node"]
    definitions: Schema = {"node": _node(catalogue)}
    for kind in catalogue.kinds():
        for name in catalogue.names(kind):
            definitions[f"{kind}.{name}"] = _type(catalogue, kind, name)
    for kind in kinds:
        definitions[kind] = _choice(catalogue, kind)
    sections = _sections(catalogue)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a flowrl graph",
        "type": "object",
        "properties": {**_root(), **{name: _ref(kind) for name, kind in sections.items()}},
        "additionalProperties": False,
        "if": {"required": ["extends"]},
        "else": _standalone(catalogue, sections),
        "$defs": definitions,
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _root() -> Schema:
    """The keys at the top of every graph."""
    return {
        "about": {
            "type": ["string", "null"],
            "description": "a description of the graph in one line",
        },
        "extends": {"type": "string", "description": "the graph that this one changes"},
        "seed": {**_or_null(_whole_number(0, 2**63 - 1)), "default": 0},
        "torch_threads": {**_or_null(_whole_number(*TORCH_THREADS)), "default": 1},
        "modules": _modules(),
        "limits": _limits(),
        "snapshots": _snapshots(),
        "params": {"type": ["object", "null"], "description": "values for ${name}"},
        "ports": {
            "type": "object",
            "description": "of a part-graph: which ports of its nodes it shows",
        },
        "nodes": _closed({}, additional={"$ref": "#/$defs/node"}, names=_NODE),
        "edges": _edges(),
        "warmup": _warmup(),
        "placements": _placements(),
        "launch": _launch(),
    }


def _whole_number(least: int, most: int | None = None) -> Schema:
    bound = {} if most is None else {"maximum": most}
    return {"anyOf": [{"type": "integer", "minimum": least, **bound}, SUBSTITUTED]}


def _or_null(schema: Schema) -> Schema:
    return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}


def _closed(properties: Schema, additional: Any = False, names: str = "") -> Schema:
    found: Schema = {"type": ["object", "null"], "properties": properties}
    found["additionalProperties"] = additional
    if names:
        found["propertyNames"] = {"pattern": names}
    return found


def _modules() -> Schema:
    folder = {"type": "string"}
    several = {"type": "array", "items": folder}
    return _or_null({"anyOf": [folder, several], "description": "folders of Python modules"})


def _limits() -> Schema:
    time: Schema = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}
    counts = {name: _or_null(_whole_number(1)) for name in ("steps", "train_iters", "rounds")}
    time = {**_or_null(time), "description": "such as 90, 30s, 10m or 2h"}
    return _closed({**counts, "time": time})


def _snapshots() -> Schema:
    time: Schema = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}
    seconds = {**_or_null(time), "description": "such as 60 or 10m"}
    counts = {name: _or_null(_whole_number(1)) for name in ("every_rounds", "keep")}
    off: Schema = {"const": False, "description": "none but those that are asked for"}
    return {"anyOf": [_closed({"every_s": seconds, **counts}), off]}


def _edges() -> Schema:
    """The list of edges: chains, chains with options, and edges in full."""
    chain = {
        "pattern": _CHAIN,
        "description": "a -> b, a <-> b, or a chain: collector -> buffer -> learner",
    }
    full = {"anyOf": [{"required": ["from"]}, {"required": ["to"]}]}
    return {
        "type": ["array", "null"],
        "items": {
            "type": ["string", "object"],
            "if": {"type": "string"},
            "then": chain,
            "else": {"if": full, "then": _full_edge(), "else": _short_edge()},
        },
    }


def _options() -> Schema:
    return {name: option.json_schema() for name, option in EDGE_OPTIONS.items()}


def _full_edge() -> Schema:
    """`{from: a.port, to: b.port, …}`."""
    end = {"type": "string", "pattern": _END}
    ends = {"type": "array", "items": end, "minItems": 1}
    own = {"from": {"anyOf": [end, ends]}, "to": end, "link": {"type": "boolean"}}
    return {
        "properties": {**own, **_options()},
        "required": ["from", "to"],
        "additionalProperties": False,
    }


def _short_edge() -> Schema:
    """`a -> b: {lag: 1}`, and with null the removal of an edge: `a -> b: null`, `b.port: null`."""
    options = {
        "type": ["object", "null"],
        "properties": _options(),
        "additionalProperties": False,
    }
    return {
        "minProperties": 1,
        "maxProperties": 1,
        "propertyNames": {"anyOf": [{"pattern": _CHAIN}, {"pattern": _END}]},
        "additionalProperties": options,
    }


def _warmup() -> Schema:
    """The list of warm-up phases."""
    number = {"type": "integer", "minimum": 0}
    phase = {
        "type": "object",
        "properties": {
            "edges": {
                "type": "array",
                "items": {"type": "string", "pattern": _CHAIN},
                "minItems": 1,
                "description": "the edges that are active, such as collector -> buffer",
            },
            "steps": {**number, "description": "env steps, rounded up to whole rounds"},
            "rounds": {**number, "description": "its length in rounds"},
            "set": {
                "type": "object",
                "propertyNames": {"pattern": r"^[A-Za-z_][\w/-]*\.\w+$"},
                "description": "other values for parameters, such as collector.policy: random",
            },
        },
        "required": ["edges"],
        "oneOf": [{"required": ["steps"]}, {"required": ["rounds"]}],
        "additionalProperties": False,
    }
    return {"type": ["array", "null"], "items": phase}


def _placements() -> Schema:
    word = {"type": "string", "pattern": _PLACE, "description": "thread, process or a host"}
    needs = {
        "place": word,
        "cores": _described(_whole_number(0, MOST), "cores that it needs"),
        "memory": {"type": "string", "pattern": BYTES_PATTERN, "description": "such as 8GB"},
        "gpus": _described(_whole_number(0, MOST), "GPUs that its process alone sees"),
        "spread": {"type": "boolean", "description": "each replica needs a host of its own"},
    }
    place = {"anyOf": [word, {**_closed(needs), "type": "object"}]}
    return _closed({}, additional=_closed({}, additional=place, names=_PLACED))


def _described(schema: Schema, text: str) -> Schema:
    return {**schema, "description": text}


def _launch() -> Schema:
    launcher = _ref("launcher")
    several = {"type": "array", "items": launcher}
    return {"anyOf": [launcher, several], "description": "what starts the hosts of a run"}


def _shared_parts(catalogue: Catalogue) -> Iterator[Mapping[str, Any]]:
    """The declarations of all parts that a registered type may take from a section."""
    for kind in catalogue.kinds():
        for name in catalogue.names(kind):
            for extras in part_fields(catalogue.find(kind, name).Config).values():
                if extras["shared"]:
                    yield extras


def _sections(catalogue: Catalogue) -> dict[str, str]:
    """The sections at the top, each with its kind of part."""
    found = {extras["shared"]: str(extras["part"]) for extras in _shared_parts(catalogue)}
    return dict(sorted(found.items()))


def _standalone(catalogue: Catalogue, sections: Mapping[str, str]) -> Schema:
    """The requirements of a graph that extends no other."""
    node = {"type": ["object", "string"], "required": ["type"]}
    properties: Schema = {"nodes": {"type": "object", "minProperties": 1}}
    properties["nodes"]["additionalProperties"] = node
    for section, kind in sections.items():
        if default := _default_type(catalogue, section):
            untyped = {"type": "object", "not": {"required": ["type"]}}
            properties[section] = {"if": untyped, "then": _ref(f"{kind}.{default}")}
    return {"required": ["nodes"], "properties": properties}


def _default_type(catalogue: Catalogue, section: str) -> str | None:
    """The type of a section that names none, if all types that take the section agree on it."""
    found = {part_default(e) for e in _shared_parts(catalogue) if e["shared"] == section}
    return found.pop() if len(found) == 1 else None


def _node(catalogue: Catalogue) -> Schema:
    schema = _choice(catalogue, "node", PART_GRAPH)
    schema["properties"] |= _engine_keys()
    return schema


def _engine_keys() -> Schema:
    return {
        "replicas": {
            "anyOf": [_whole_number(1), {"type": "string", "pattern": _RANGE}],
            "description": "the number of replicas of this node, or 2..16 if some may come later",
        },
        "on_failure": {"enum": list(FAILURES), "description": "what a failed firing does"},
        "torch_threads": {
            **_whole_number(*TORCH_THREADS),
            "description": "threads of torch in this node's firings; default: the graph's",
        },
    }


def _choice(catalogue: Catalogue, kind: str, *more: Schema) -> Schema:
    """A type's name, or a mapping with a type and its parameters."""
    names = catalogue.names(kind)
    known = [{"const": n, "description": type_summary(catalogue.find(kind, n))} for n in names]
    name: Schema = {"anyOf": [*known, OWN_TYPE, SUBSTITUTED, *more]}
    return {
        "type": ["object", "string", "null"],
        "if": {"type": "string"},
        "then": name,
        "properties": {"type": name},
        "allOf": [{"if": _has_type(n), "then": _ref(f"{kind}.{n}")} for n in names],
    }


def _has_type(name: str) -> Schema:
    return {"type": "object", "properties": {"type": {"const": name}}, "required": ["type"]}


def _type(catalogue: Catalogue, kind: str, name: str) -> Schema:
    """The parameters of one type."""
    cls = catalogue.find(kind, name)
    fields: Mapping[str, FieldInfo] = cls.Config.model_fields
    own: Schema = {"type": {}} | (_engine_keys() if kind == "node" else {})
    found = {
        "description": type_summary(cls),
        "properties": {**own, **{n: _param(info) for n, info in fields.items()}},
        "required": _required(cls.Config),
        "additionalProperties": False,
    }
    others = {n for t in catalogue.names(kind) for n in catalogue.find(kind, t).Config.model_fields}
    if removable := sorted(others - fields.keys() - own.keys()):
        found["patternProperties"] = {f"^({'|'.join(removable)})$": REMOVED}
    return found


def _required(config: type[Config]) -> list[str]:
    """Parameters that must be given beside the type. A part may also come from a section at the top."""
    found = []
    for name, info in config.model_fields.items():
        extras, missing = field_extras(info), info.is_required()
        if "part" in extras:
            missing = extras["written"] is REQUIRED and not extras["shared"]
        if missing:
            found.append(name)
    return found


def _param(info: FieldInfo) -> Schema:
    extras = field_extras(info)
    if "part" in extras:
        schema: Schema = _ref(extras["part"])
        default = extras["written"]
    elif "named_parts" in extras:
        each = _ref(extras["named_parts"])
        least = 0 if extras["optional"] else 1
        schema = {
            "type": ["object", "null"],
            "minProperties": least,
            "additionalProperties": each,
        }
        default = {} if extras["optional"] else REQUIRED
    elif "parts" in extras:
        schema, default = {"type": ["array", "null"], "items": _ref(extras["parts"])}, []
    else:
        schema = {"anyOf": [_values(info), SUBSTITUTED, {"type": "null"}]}  # null removes a value
        default = info.default
    if default is not REQUIRED:
        schema["default"] = written_value(default)
    return {"description": info.description or "", **schema}


def _values(info: FieldInfo) -> Schema:
    """The values of a parameter by its annotation; any value where JSON cannot express the annotation."""
    words = (info.annotation, *info.metadata)
    annotation = cast(Any, Annotated)[words] if info.metadata else cast(Any, info.annotation)
    try:
        schema = TypeAdapter(annotation).json_schema()
        return cast(Schema, _inlined(schema, schema.pop("$defs", {})))
    except PydanticInvalidForJsonSchema:
        return {}


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Replace references to definitions by what they define, because a parameter has no definitions of its own.

    None of the keys of a value is required: the default, or a graph that is extended, may have the others.
    """
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if name in definitions:
        return _inlined(definitions[name], definitions)
    return {
        key: _inlined(value, definitions)
        for key, value in schema.items()
        if not (key == "required" and isinstance(value, list))
    }
