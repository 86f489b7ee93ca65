"""Encodes an env part as JSON and back, for worker processes and crash files.

Objects are named by import path and never pickled. A value arrives as what it was, or is refused: an instance of a
subclass would arrive as one of its base class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any

import numpy as np

from flowrl.core.config import Config, Part, PartSpec
from flowrl.core.facts import UnsoundError
from flowrl.core.import_paths import import_any_object

PART, SPEC, TUPLE, ARRAY = "$part", "$spec", "$tuple", "$array"  # keys that no config has
OBJECT, PARTIAL, NAMED_TUPLE, CONFIG = "$object", "$partial", "$named_tuple", "$config"


def to_portable(value: Any, where: str = "env") -> Any:
    """Encode a value as plain data; `where` names it in errors."""
    if isinstance(value, str) and value.startswith("__main__:"):
        raise _unimportable(f"'{value}' of the script that was started", where)
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Part):
        return {PART: _path_of(type(value), where), "config": _encode_config(value.config, where)}
    if isinstance(value, PartSpec):
        path = _path_of(value.cls, where)
        return {SPEC: path, "type": value.type, "config": _encode_config(value.config, where)}
    if isinstance(value, Config):  # a value with keys
        return {CONFIG: _path_of(type(value), where), "values": _encode_config(value, where)}
    if type(value) is dict:
        return {_check_key(k, where): to_portable(v, f"{where}.{k}") for k, v in value.items()}
    if type(value) is list:
        return [to_portable(v, f"{where}[{k}]") for k, v in enumerate(value)]
    if type(value) is tuple:
        return {TUPLE: to_portable(list(value), where)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {NAMED_TUPLE: _path_of(type(value), where), "items": to_portable(list(value), where)}
    if isinstance(value, Enum) and value.name in type(value).__members__:
        return {OBJECT: f"{_path_of(type(value), where)}.{value.name}"}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        return {ARRAY: value.tolist(), "dtype": str(value.dtype)}
    if isinstance(value, partial):
        arguments = {
            "args": to_portable(value.args, where),
            "kwargs": to_portable(value.keywords, where),
        }
        return {PARTIAL: to_portable(value.func, where), **arguments}
    if callable(value) and hasattr(value, "__qualname__"):
        return {OBJECT: _path_of(value, where)}
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
    if CONFIG in data:
        values = from_portable(data["values"], import_named)
        return _config_type(import_named(data[CONFIG]), data[CONFIG])(**values)
    if TUPLE in data:
        return tuple(from_portable(data[TUPLE], import_named))
    if NAMED_TUPLE in data:
        named_tuple = _named_tuple_type(import_named(data[NAMED_TUPLE]), data[NAMED_TUPLE])
        return named_tuple(*from_portable(data["items"], import_named))
    if OBJECT in data:
        return import_named(data[OBJECT])
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


def _config_type(found: Any, path: str) -> type[Config]:
    if not (isinstance(found, type) and issubclass(found, Config)):
        raise UnsoundError(f"'{path}' is not the type of a value with keys")
    return found


def _named_tuple_type(found: Any, path: str) -> type[tuple[Any, ...]]:
    if not (isinstance(found, type) and issubclass(found, tuple)):
        raise UnsoundError(f"'{path}' is not the type of a named tuple")
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


def _path_of(value: Any, where: str) -> str:
    """Return the import path of a class or function, which must lead to the same object."""
    path = f"{value.__module__}:{value.__qualname__}"
    if value.__module__ != "__main__":
        with suppress(ImportError, AttributeError):
            if import_any_object(path) == value:
                return path
    what = f"of the class {value.__qualname__}" if isinstance(value, type) else value.__qualname__
    raise _unimportable(what, where)


def _unimportable(what: str, where: str) -> UnsoundError:
    return UnsoundError(
        f"{where} is {what}, which another process cannot import",
        "define it at the top of a module of its own",
        where,
    )
