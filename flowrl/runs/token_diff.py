"""The first token in which two runs differ: in the order of the program, by their hashes."""

from __future__ import annotations

from collections import deque
from contextlib import closing
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from flowrl.runs.token_file import NAME, Tokens, Way
from flowrl.runtime.token_hashing import TokenHash


def diff_tokens(a: Path, b: Path, alike: bool = False) -> str:
    """The difference of two runs that were recorded with `--hash-tokens`, in words; where their graphs are alike,
    what it may come from, too."""
    missing = [str(run) for run in (a, b) if not (run / NAME).is_file()]
    if missing:
        return f"tokens: not recorded in {' and '.join(missing)}; run both again with --hash-tokens"
    with closing(Tokens(a)) as first, closing(Tokens(b)) as second:
        said = "" if first.seed == second.seed else f"the seeds: {first.seed} -> {second.seed}\n"
        if first.ways == second.ways:
            return said + _same_ways(first, second, a, b, alike and not said)
        return said + _other_ways(first, second)


def _same_ways(first: Tokens, second: Tokens, a: Path, b: Path, alike: bool) -> str:
    """One program: the first place where the files differ is the first token that does."""
    counts = [0] * len(first.ways)  # by way: tokens that were equal
    for x, y in zip_longest(first, second):
        if x != y:
            break
        counts[x.way] += 1
    else:
        return f"tokens: all {sum(counts):,} are equal"
    equal = f"{sum(counts):,} before it are equal"
    if x is None or y is None:
        shorter, more = (a, y) if x is None else (b, x)
        way = first.ways[more.way]
        goes_on = f"the other goes on with {_told(more, way, counts[more.way])}"
        return f"tokens: all {sum(counts):,} are equal as far as {shorter} goes; it ended earlier: {goes_on}"
    if (x.position, x.way, x.version) == (y.position, y.way, y.version):
        told = _told(x, first.ways[x.way], counts[x.way])
        where = f"tokens: the first that differs is {told}\n  {equal}"
        return f"{where}\n{_why(x, first.ways[x.way])}" if alike else where
    lines = ["tokens: here the runs do different things"]
    for run, one in ((a, x), (b, y)):
        lines.append(f"  {run}: {_told(one, first.ways[one.way], counts[one.way])}")
    return "\n".join([*lines, f"  {equal}"])


def _why(hashed: TokenHash, way: Way) -> str:
    """What can be the cause: all that was given before is the same, and so is what this was made from."""
    if way.kind == "state" and not hashed.version:
        return f"  {way.gives} was made otherwise from the start: by a global generator, or from other files"
    return (
        f"  what {way.gives} had taken until then is equal too: so its own code, or that of a service which it calls,\n"
        "  computes with something else: a global generator, the clock, the order of a set, a file "
        "(docs/nodes.md says what to use)"
    )


def _told(hashed: TokenHash, way: Way, number: int) -> str:
    """A token, who made it and in which firing."""
    firing, rounds = hashed.position[-1], hashed.position[0]
    if way.kind == "state":
        made = (
            f"as firing {hashed.version - 1} of {way.gives} left it"
            if hashed.version
            else "as made"
        )
        return (
            f"version {hashed.version} of {way.name}, {made}, "
            f"seen by firing {firing} of {way.takes} (round {rounds})"
        )
    return f"token {number} of {way.name}, from firing {firing} of {way.gives} (round {rounds})"


# graphs that differ


@dataclass(slots=True)
class _Both:
    """A way that both runs have, and what one of them is ahead with."""

    way: Way
    ahead: deque[TokenHash]
    whose: int = 0
    equal: int = 0


def _other_ways(first: Tokens, second: Tokens) -> str:
    """Two programs: ways of the same name are compared, token by token."""
    theirs = {way.name for way in second.ways}
    both = {way.name: _Both(way, deque()) for way in first.ways if way.name in theirs}
    only = [w.name for t in (first, second) for w in t.ways if w.name not in both]
    said = f"tokens: the ways differ ({', '.join(only)} only in one); those in both are compared"
    for x, y in zip_longest(first, second):
        for whose, (one, tokens) in enumerate(((x, first), (y, second))):
            found = both.get(tokens.ways[one.way].name) if one is not None else None
            if found is not None and one is not None and not _matches(found, whose, one):
                return f"{said}\n  the first that differs is {_told(one, found.way, found.equal)}"
    ended = [name for name, found in both.items() if found.ahead]
    equal = sum(found.equal for found in both.values())
    rest = f"; one run goes on, on {', '.join(ended)}" if ended else ""
    return f"{said}\n  all {equal:,} are equal{rest}"


def _matches(found: _Both, whose: int, one: TokenHash) -> bool:
    """Whether a token is what the other run had at its place; if that is known yet."""
    if not found.ahead or found.whose == whose:
        found.ahead.append(one)
        found.whose = whose
        return True
    other = found.ahead.popleft()
    same = (other.version, other.digest) == (one.version, one.digest)
    found.equal += same
    return same
