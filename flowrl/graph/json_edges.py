"""The parts of the JSON schema that name nodes: edges and warm-up."""

from __future__ import annotations

from typing import Any

from flowrl.graph.edge_options import OPTIONS

Schema = dict[str, Any]

NODE = r"^[A-Za-z_][\w/-]*$"
PLACE = r"^[\w.*?@:/\[\]-]+$"
_END = r"\s*[A-Za-z_][\w/-]*(\.[A-Za-z_]\w*)?\s*"
_ENDS = rf"{_END}(,{_END})*"
CHAIN = rf"^{_ENDS}((<->|->){_ENDS})+$"
REF = rf"^{_END}$"

_VALUES: dict[str, Schema] = {
    "lag": {"type": "integer", "minimum": 0},
    "every": {"type": "integer", "minimum": 1},
    "latest": {"type": "boolean"},
    "max_staleness": {"type": "integer", "minimum": 0},
    "merge": {"enum": ["order", "any"]},
    "capacity": {"type": "integer", "minimum": 1},
    "when_full": {"enum": ["wait", "drop_oldest"]},
}


def edges_schema() -> Schema:
    """The list of edges: chains, chains with options, and edges in full."""
    chain = {
        "pattern": CHAIN,
        "description": "a -> b, a <-> b, or a chain: collector -> buffer -> learner",
    }
    full = {"anyOf": [{"required": ["from"]}, {"required": ["to"]}]}
    return {
        "type": ["array", "null"],
        "items": {
            "type": ["string", "object"],
            "if": {"type": "string"},
            "then": chain,
            "else": {"if": full, "then": _full(), "else": _short()},
        },
    }


def options_schema() -> Schema:
    """The options of an edge."""
    return {
        name: {"description": f"of {' and '.join(kinds)} edges: {wanted}", **_VALUES[name]}
        for name, (kinds, wanted) in OPTIONS.items()
    }


def _full() -> Schema:
    """`{from: a.port, to: b.port, …}`."""
    end = {"type": "string", "pattern": REF}
    ends = {"type": "array", "items": end, "minItems": 1}
    own = {"from": {"anyOf": [end, ends]}, "to": end, "link": {"type": "boolean"}}
    return {
        "properties": {**own, **options_schema()},
        "required": ["from", "to"],
        "additionalProperties": False,
    }


def _short() -> Schema:
    """`a -> b: {lag: 1}`, and with null the removal of an edge: `a -> b: null`, `b.port: null`."""
    options = {
        "type": ["object", "null"],
        "properties": options_schema(),
        "additionalProperties": False,
    }
    return {
        "minProperties": 1,
        "maxProperties": 1,
        "propertyNames": {"anyOf": [{"pattern": CHAIN}, {"pattern": REF}]},
        "additionalProperties": options,
    }


def warmup_schema() -> Schema:
    """The list of phases."""
    number = {"type": "integer", "minimum": 0}
    phase = {
        "type": "object",
        "properties": {
            "edges": {
                "type": "array",
                "items": {"type": "string", "pattern": CHAIN},
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
