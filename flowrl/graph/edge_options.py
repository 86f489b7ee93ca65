"""The declaration of an edge option. The options themselves are fields of `Edge` in graph/model.py.

A declaration determines which values the reader accepts and its error text, the JSON schema, the table in
docs/graph.md, the reason that `check` gives where a value makes runs differ, and the labels in reports and pictures.
The engine reads an option as an attribute of the edge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

EdgeKind = Literal["stream", "state", "link"]

MAX_NUMBER = 1_000_000  # a larger number is a mistake, and could fill the memory


@dataclass(frozen=True, slots=True)
class EdgeOption:
    """One option of edges."""

    name: str
    default: Any
    kinds: tuple[EdgeKind, ...]
    meaning: str  # one sentence, for the docs and for editors
    choices: tuple[str, ...] = ()
    minimum: int | None = None  # of a whole number; None: the option is a choice or a boolean
    unit: str = ""  # of the number
    default_text: str = ""  # the meaning of the default, where its value does not say it
    # Why runs differ, by the value that makes them differ.
    nondeterminism: Mapping[Any, str] = field(default_factory=dict)
    changes_bytes_only: bool = False  # what nodes compute does not depend on it
    only_with_several_producers: bool = False  # with one, the value makes no difference
    label: Callable[[Any], str] | None = None  # in a picture; None: not shown
    report: Callable[[Any], str] | None = None  # in a report; None: like `label`
    # Its default is shown unless one of these options is set; None: it is never shown.
    default_shown_unless: tuple[str, ...] | None = None

    @property
    def expected(self) -> str:
        """The accepted values in words."""
        if self.choices:
            return " or ".join(f"'{choice}'" for choice in self.choices)
        if self.minimum is None:
            return "true or false"
        return f"a whole number of {self.unit}, {self.minimum} to {MAX_NUMBER:,}"

    def accepts(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        if self.minimum is None:
            return isinstance(value, bool)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return is_whole and self.minimum <= value <= MAX_NUMBER

    def json_schema(self) -> dict[str, Any]:
        """The JSON schema of the option's value, with a description."""
        about = {"description": f"of {' and '.join(self.kinds)} edges: {self.meaning}"}
        if self.choices:
            return {**about, "enum": list(self.choices)}
        if self.minimum is None:
            return {**about, "type": "boolean"}
        return {**about, "type": "integer", "minimum": self.minimum, "maximum": MAX_NUMBER}


def option(default: Any, *, kinds: tuple[EdgeKind, ...], meaning: str, **details: Any) -> Any:
    """A field of `Edge` that is an option; `details` are the other fields of `EdgeOption`."""
    declared = {"default": default, "kinds": kinds, "meaning": meaning, **details}
    return field(default=default, metadata={"option": declared})
