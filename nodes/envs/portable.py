"""Encodes an env part as JSON and back, for worker processes and crash files.

Objects are named by import path and never pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from flowrl.core.config import Config, Part, PartSpec
from flowrl.core.import_paths import import_any_object
from flowrl.core.node import UnsoundError

PART, SPEC, TUPLE, ARRAY = "$part", "$spec", "$tuple", "$array"  # keys that no config has
CALL, PARTIAL = "$call", "$partial"


def to_portable(value: Any, where: str = "env") -> Any:
    """Encode a value as plain data; `where` names it in errors."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Part):
        return {PART: _path_of(type(value), where), "config": _encode_config(value.config, where)}
    if isinstance(value, PartSpec):
        path = _path_of(value.cls, where)
        return {SPEC: path, "type": value.type, "config": _encode_config(value.config, where)}
    if isinstance(value, Mapping):
        return {_check_key(k, where): to_portable(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, list):
        return [to_portable(v, f"{where}[{k}]") for k, v in enumerate(value)]
    if isinstance(value, tuple):
        return {TUPLE: to_portable(list(value), where)}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        return {ARRAY: value.tolist(), "dtype": str(value.dtype)}
    if isinstance(value, partial):
        arguments = {
            "args": to_portable(value.args, where),
            "kwargs": to_portable(value.keywords, where),
        }
        return {PARTIAL: to_portable(value.func, where), **arguments}
    if callable(value) and hasattr(value, "__qualname__"):
        return {CALL: _path_of(value, where)}
    raise UnsoundError(
        f"{where} is a {type(value).__name__}, which cannot be sent to another process",
        "give numbers, strings, lists and mappings, or make it in the env's own constructor",
        where,
    )


def from_portable(data: Any, import_named: Callable[[str], Any] = import_any_object) -> Any:
    """Decode what `to_portable` encoded. `import_named` imports by path; for data of a file, it is `import_object`."""
    if isinstance(data, list):
        return [from_portable(item, import_named) for item in data]
    if not isinstance(data, dict):
        return data
    if PART in data:
        cls = _part_type(import_named(data[PART]), data[PART])
        return cls(_decode_config(cls, data, import_named))
    if SPEC in data:
        cls = _part_type(import_named(data[SPEC]), data[SPEC])
        return PartSpec(data["type"], cls, _decode_config(cls, data, import_named))
    if TUPLE in data:
        return tuple(from_portable(data[TUPLE], import_named))
    if CALL in data:
        return import_named(data[CALL])
    if PARTIAL in data:
        return partial(
            from_portable(data[PARTIAL], import_named),
            *from_portable(data["args"], import_named),
            **from_portable(data["kwargs"], import_named),
        )
    if ARRAY in data:
        array = np.array(data[ARRAY], data["dtype"])
        return array if array.ndim else array[()]
    return {key: from_portable(value, import_named) for key, value in data.items()}


def _part_type(found: Any, path: str) -> type[Part]:
    if not (isinstance(found, type) and issubclass(found, Part)):
        raise UnsoundError(f"'{path}' is not the type of an env or of a wrapper")
    return found


def _encode_config(config: Config, where: str) -> Any:
    names = type(config).model_fields
    return {name: to_portable(getattr(config, name), f"{where}.{name}") for name in names}


def _decode_config(
    cls: type[Part], data: Mapping[str, Any], import_named: Callable[[str], Any]
) -> Config:
    return cls.Config(**from_portable(data["config"], import_named))


def _check_key(key: Any, where: str) -> str:
    if not isinstance(key, str) or key.startswith("$"):
        raise UnsoundError(
            f"{where} has the key {key!r}", "keys are strings that do not begin with $"
        )
    return key


def _path_of(cls: Any, where: str) -> str:
    if cls.__module__ == "__main__" or {"<locals>", "<lambda>"} & set(cls.__qualname__.split(".")):
        what = f"of the class {cls.__qualname__}" if isinstance(cls, type) else cls.__qualname__
        raise UnsoundError(
            f"{where} is {what}, which another process cannot import",
            "define it at the top of a module of its own",
            where,
        )
    return f"{cls.__module__}:{cls.__qualname__}"
