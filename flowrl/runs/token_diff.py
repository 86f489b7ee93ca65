"""Finds the first token in which two runs differ, by comparing their token hashes in serial order."""

from __future__ import annotations

from collections import deque
from contextlib import closing
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from flowrl.runs.token_file import TOKEN_FILE, NamedPair, TokenReader
from flowrl.runtime.token_hashing import TokenHash


def diff_tokens(a: Path, b: Path, equal_graphs: bool = False) -> str:
    """Describe the first difference between two runs that were recorded with `--hash-tokens`.

    With `equal_graphs` (both graphs compute the same) the text also says what may cause the difference.
    """
    missing = [str(run) for run in (a, b) if not (run / TOKEN_FILE).is_file()]
    if missing:
        return f"tokens: not recorded in {' and '.join(missing)}; run both again with --hash-tokens"
    with closing(TokenReader(a)) as first, closing(TokenReader(b)) as second:
        seeds = "" if first.seed == second.seed else f"the seeds: {first.seed} -> {second.seed}\n"
        if first.pairs == second.pairs:
            return seeds + _diff_one_program(first, second, a, b, equal_graphs and not seeds)
        return seeds + _diff_two_programs(first, second)


def _diff_one_program(
    first: TokenReader, second: TokenReader, a: Path, b: Path, explain: bool
) -> str:
    """Compare runs of one serial program: the first difference of the files is the first token that differs."""
    counts = [0] * len(first.pairs)  # equal tokens, by replica pair
    for x, y in zip_longest(first, second):
        if x != y:
            break
        counts[x.pair] += 1
    else:
        return f"tokens: all {sum(counts):,} are equal"
    equal = f"{sum(counts):,} before it are equal"
    if x is None or y is None:
        shorter, more = (a, y) if x is None else (b, x)
        following = f"the other continues with {_describe(more, first.pairs, counts)}"
        return f"tokens: all {sum(counts):,} are equal up to the end of {shorter}, which ended earlier: {following}"
    if (x.position, x.pair, x.version) == (y.position, y.pair, y.version):
        where = f"tokens: the first that differs is {_describe(x, first.pairs, counts)}\n  {equal}"
        return f"{where}\n{_possible_cause(x, first.pairs[x.pair])}" if explain else where
    lines = ["tokens: from this point the runs do different things"]
    lines += [
        f"  {run}: {_describe(token, first.pairs, counts)}" for run, token in ((a, x), (b, y))
    ]
    return "\n".join([*lines, f"  {equal}"])


def _possible_cause(hashed: TokenHash, pair: NamedPair) -> str:
    """All earlier tokens are equal, and so is everything that this one was computed from."""
    if pair.kind == "state" and not hashed.version:
        return f"  {pair.producer} was initialised differently: by a global generator, or from other files"
    return (
        f"  the inputs of {pair.producer} up to this point are equal too, so its own code, or that of a service\n"
        "  that it calls, depends on something else: a global generator, the clock, the order of a set, a file "
        "(docs/nodes.md says what to use instead)"
    )


def _describe(hashed: TokenHash, pairs: list[NamedPair], counts: list[int]) -> str:
    return describe_token(hashed, pairs[hashed.pair], counts[hashed.pair])


def describe_token(hashed: TokenHash, pair: NamedPair, number: int) -> str:
    """A token or version, the instance that made it, and the firing in which it did."""
    firing, round_ = hashed.position[-1], hashed.position[0]
    if pair.kind == "state":
        made = (
            f"after firing {hashed.version - 1} of {pair.producer}"
            if hashed.version
            else "as initialised"
        )
        return (
            f"version {hashed.version} of {pair.name}, {made}, "
            f"read by firing {firing} of {pair.consumer} (round {round_})"
        )
    return (
        f"token {number} of {pair.name}, from firing {firing} of {pair.producer} (round {round_})"
    )


# graphs that differ


@dataclass(slots=True)
class _SharedPair:
    """A replica pair that both runs have, and the tokens by which one run is ahead of the other."""

    pair: NamedPair
    ahead: deque[TokenHash]
    ahead_run: int = 0  # 0: the first run, 1: the second
    equal: int = 0

    def matches(self, run: int, hashed: TokenHash) -> bool:
        """Whether a token equals its counterpart in the other run. A token without one yet is kept."""
        if not self.ahead or self.ahead_run == run:
            self.ahead.append(hashed)
            self.ahead_run = run
            return True
        other = self.ahead.popleft()
        same = (other.version, other.digest) == (hashed.version, hashed.digest)
        self.equal += same
        return same


def _diff_two_programs(first: TokenReader, second: TokenReader) -> str:
    """Compare, token by token, the replica pairs of the same name."""
    second_names = {pair.name for pair in second.pairs}
    shared = {
        pair.name: _SharedPair(pair, deque()) for pair in first.pairs if pair.name in second_names
    }
    only = [p.name for reader in (first, second) for p in reader.pairs if p.name not in shared]
    head = (
        f"tokens: the edges differ ({', '.join(only)} only in one run); those in both are compared"
    )
    for x, y in zip_longest(first, second):
        for run, (hashed, reader) in enumerate(((x, first), (y, second))):
            if hashed is None:
                continue
            found = shared.get(reader.pairs[hashed.pair].name)
            if found is not None and not found.matches(run, hashed):
                differs = describe_token(hashed, found.pair, found.equal)
                return f"{head}\n  the first that differs is {differs}"
    unmatched = [name for name, found in shared.items() if found.ahead]
    equal = sum(found.equal for found in shared.values())
    rest = f"; one run continues on {', '.join(unmatched)}" if unmatched else ""
    return f"{head}\n  all {equal:,} are equal{rest}"
