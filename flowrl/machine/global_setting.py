"""A setting that is global to this process or to a thread, as the numerical libraries have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class GlobalSetting:
    """How one setting is read and written, and the value that is wanted for a run.

    Except for counts of threads, that is the value with which the library itself begins.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    wanted: Any


def attribute_setting(name: str, owner: Any, attribute: str, wanted: Any) -> GlobalSetting:
    """Make a setting that is an attribute of an object."""

    def read() -> Any:
        return getattr(owner, attribute)

    def write(value: Any) -> None:
        if read() != value:  # an equal value may be inherited, and must stay so
            setattr(owner, attribute, value)

    return GlobalSetting(name, read, write, wanted)


def current_values(settings: Iterable[GlobalSetting]) -> dict[str, Any]:
    """Return the value of each setting, by name."""
    return {setting.name: setting.read() for setting in settings}


def settle(settings: Iterable[GlobalSetting]) -> None:
    """Write the wanted value of each setting."""
    for setting in settings:
        setting.write(setting.wanted)


def put_back(settings: Iterable[GlobalSetting], values: Mapping[str, Any]) -> None:
    """Write the earlier value of each setting, or the wanted one if its library was not loaded then.

    The last setting is written first. All of them are written, even if one cannot be.
    """
    with ExitStack() as stack:
        for setting in settings:
            stack.callback(setting.write, values.get(setting.name, setting.wanted))
