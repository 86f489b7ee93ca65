"""Places: where a placement puts a node, and what the node needs there.

A place is written as a word (`process`, `gpu-*`), or as a mapping of the word and needs: `{place: gpu-*, gpus: 1}`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from flowrl.core.errors import shortened_repr, spelling_hint
from flowrl.core.sizes import BYTES_PATTERN, parse_bytes
from flowrl.core.wording import count_text, size_text
from flowrl.graph.keywords import ANY_HOST, PLACE, PLACE_KEYS

MAIN = "main"
LOCAL_PLACES = (MAIN, "thread", "process")  # places on the machine where the run was started
BUILT_IN = {"serial": MAIN, "threads": "thread", "processes": "process"}
EXPECTED = "expected thread, process or a host"
MOST = 1 << 20  # cores or GPUs
_MEANT = {**{place: place for place in LOCAL_PLACES}, **BUILT_IN}


@dataclass(frozen=True, slots=True)
class Needs:
    """What a node asks of the machine on which it is placed."""

    cores: int = 0
    memory_bytes: int = 0
    gpus: int = 0

    def __add__(self, other: Needs) -> Needs:
        return Needs(
            self.cores + other.cores,
            self.memory_bytes + other.memory_bytes,
            self.gpus + other.gpus,
        )

    def __str__(self) -> str:
        """`1 GPU, 4 cores`; empty if nothing is needed."""
        words = []
        if self.gpus:
            words.append(count_text(self.gpus, "GPU"))
        if self.cores:
            words.append(count_text(self.cores, "core"))
        if self.memory_bytes:
            words.append(size_text(self.memory_bytes))
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node is put. `word` is `main`, `thread`, `process` or a host, perhaps with the name of a shared site."""

    word: str = ANY_HOST
    needs: Needs = Needs()
    spread: bool = False  # no two replicas share a host

    @property
    def machine(self) -> str:
        """The word without the name of a shared site."""
        return self.word.partition(":")[0]

    @property
    def is_local(self) -> bool:
        """Whether the place is on the machine where the run was started."""
        return self.machine in LOCAL_PLACES

    @property
    def asks(self) -> bool:
        """Whether the node cannot be put on any machine of the right name."""
        return self.needs != Needs() or self.spread


class PlaceProblem(NamedTuple):
    """What is wrong with a written place. `key` is the entry of its mapping; empty if all of it is wrong."""

    key: str
    what: str
    hint: str


def read_place(written: Any) -> Place:
    """The place that was written, in which `place_problems` has found nothing."""
    if isinstance(written, str):
        return Place(written)
    needs = Needs(
        written.get("cores", 0),
        parse_bytes(written["memory"]) if "memory" in written else 0,
        written.get("gpus", 0),
    )
    return Place(written.get("place", ANY_HOST), needs, written.get("spread", False))


def place_problems(written: Any) -> Iterator[PlaceProblem]:
    """Yield what is wrong with a written place."""
    if not isinstance(written, Mapping):
        if hint := _word_problem(written):
            yield PlaceProblem("", f"is {shortened_repr(written)}", hint)
        return
    found = False
    for key, value in written.items():
        if key not in PLACE_KEYS:
            found = True
            yield PlaceProblem(key, f"unknown key '{key}'", spelling_hint(key, PLACE_KEYS))
        elif hint := _value_problem(key, value):
            found = True
            yield PlaceProblem(key, f"{key} is {shortened_repr(value)}", hint)
    if not found:
        yield from _contradictions(read_place(written))


def _value_problem(key: str, value: Any) -> str:
    """What was expected instead of a value of a place's mapping."""
    if key == "place":
        return _word_problem(value)
    if key == "spread":
        return "" if isinstance(value, bool) else "expected true or false"
    if key == "memory":
        is_size = isinstance(value, str) and re.match(BYTES_PATTERN, value)
        return "" if is_size else "expected a size such as 8GB"
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return "" if is_number and 0 <= value <= MOST else "expected a whole number of 0 or more"


def _contradictions(place: Place) -> Iterator[PlaceProblem]:
    if place.spread and place.is_local:
        hint = f"'{place.machine}' is on the machine of the run; name hosts in `place`, or leave `spread` out"
        yield PlaceProblem("spread", "spread asks for a host for each replica", hint)
    if place.needs.gpus and place.machine in (MAIN, "thread"):
        hint = "threads share the GPUs of their process; write `place: process`"
        yield PlaceProblem("gpus", f"gpus asks for GPUs in a thread ('{place.machine}')", hint)


def _word_problem(word: object) -> str:
    """What was expected instead of a word for a place; nothing if it is one.

    A misspelt `process` would be the name of a host, for which the run would wait.
    """
    if not isinstance(word, str) or not re.fullmatch(PLACE, word):
        return EXPECTED
    machine = word.partition(":")[0]
    meant = _misspelt_local_place(machine)
    if meant is None:
        return ""
    return f"did you mean '{meant}'? For a host of this name, write the pattern '{machine}*'"


def _misspelt_local_place(word: str) -> str | None:
    """The local place that was probably meant; None if the word is one, or may well be the name of a host."""
    if word in LOCAL_PLACES or not word.isalpha():  # hosts are numbered, and patterns mean hosts
        return None
    word = word.casefold()
    near = [known for known in _MEANT if len(word) >= 4 and known.startswith(word)]
    near = near or difflib.get_close_matches(word, _MEANT, n=1, cutoff=0.82)
    return _MEANT[near[0]] if near else None
