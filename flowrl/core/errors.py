"""The errors of flowrl, and the hints in their messages.

FlowError
├── GraphError      the graph is unsound: carries every problem found (exit status 2)
├── UsageError      the arguments or the installation are wrong (exit status 2)
├── NodeError       a node's code raised: which node, in which firing, and the first cause
└── RunError        a run folder cannot be written or read
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a graph: where it is, what is wrong, and how to fix it."""

    where: str
    what: str
    hint: str = ""
    warning: bool = False

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}; {self.hint}" if self.hint else text


class Problems(list[Problem]):
    def add(self, where: object, what: str, hint: str = "") -> None:
        self.append(Problem(str(where), what, hint))


MANY_WORDS = 1000  # among more, only those that may be close are compared
SHOWN_PROBLEMS = 50  # more of them hide the first ones, which often cause the others


def problem_lines(problems: Sequence[Problem]) -> list[str]:
    """The problems as text: the first ones, and how many more there are."""
    lines = [str(problem) for problem in problems[:SHOWN_PROBLEMS]]
    if len(problems) > SHOWN_PROBLEMS:
        lines.append(f"and {len(problems) - SHOWN_PROBLEMS:,} more problems")
    return lines


class FlowError(Exception):
    """The base of all errors that flowrl raises on purpose."""


class GraphError(FlowError):
    """The graph is unsound."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problem_lines(self.problems)))


class UsageError(FlowError):
    """The arguments are wrong, or something that they need is not installed."""


LOADING_STATE = "loading its state"  # what a node did, from a snapshot


class NodeError(FlowError):
    """A node's own code raised an error, which is the `__cause__`."""

    def __init__(self, node: str, doing: str, cause: BaseException) -> None:
        self.node = node
        self.doing = doing
        self.inputs: Mapping[str, Any] | None = None  # what a failed firing took, by input
        self.failed_firing = b""  # this firing as data, once the site has kept it
        what = f"node {node!r}, {doing}: {type(cause).__name__}: {cause}"
        super().__init__(f"{what}; {READ_ONLY_HINT}" if _is_read_only(cause) else what)
        self.__cause__ = cause


READ_ONLY_HINT = (
    "the arrays of batches and states are shared and must not be changed; make new columns with "
    "`batch.replace(name=array)`, or copy the array first"
)


def _is_read_only(error: BaseException) -> bool:
    """Return whether numpy has refused to write to an array."""
    return isinstance(error, ValueError) and str(error).endswith("is read-only")


class RunError(FlowError):
    """A run folder cannot be written, found or read."""


def attached_files(error: BaseException | None) -> dict[str, str]:
    """Return the files that an error and its causes attach, to be written into the run's folder: text by file name.

    An error attaches files by an attribute `files`.
    """
    found: dict[str, str] = {}
    while error is not None:
        found = {**getattr(error, "files", {}), **found}
        error = error.__cause__
    return found


class InvalidResultError(ValueError):
    """Something that a user has written returned what it may not. The message says everything."""

    needs_traceback = False


def needs_traceback(error: BaseException) -> bool:
    """Return whether a person needs an error's traceback to understand it.

    An error whose message says everything has the attribute `needs_traceback` with the value false.
    """
    return bool(getattr(error, "needs_traceback", not isinstance(error, FlowError)))


def shortened_repr(value: Any) -> str:
    """Return the repr of a value for messages, at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def closest_word(word: str, words: Iterable[str]) -> str | None:
    """Return the known word that was probably meant, whatever its case; None if none is close."""
    # sorted, so that equally close words have the same order in every process
    known = sorted(set(words))
    if len(known) > MANY_WORDS:
        known = [other for other in known if _may_be_close(word, other)]
    found = difflib.get_close_matches(word[:80], known, n=1)
    if found:
        return found[0]
    folded = {other.casefold(): other for other in known}
    near = difflib.get_close_matches(word[:80].casefold(), folded, n=1)
    return folded[near[0]] if near else None


def _may_be_close(word: str, other: str) -> bool:
    """Return whether the words have similar lengths and the same beginning or end; far cheaper than comparing them."""
    return abs(len(word) - len(other)) <= 2 and (word[:2] == other[:2] or word[-2:] == other[-2:])


def spelling_hint(word: str, words: Iterable[str]) -> str:
    """Return a hint that names the closest known word, or lists the known words."""
    known = sorted(set(words))
    found = closest_word(word, known)
    if found is not None:
        return f"did you mean '{found}'?"
    if not known:
        return "there are none"
    shown = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
    return f"known: {shown}"
