"""Describes what is on a tape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowrl.core.batch import Batch
from flowrl.core.state import State
from flowrl.core.text_table import table_lines
from flowrl.core.wording import count_text, size_text
from flowrl.machine.environment import library_versions
from flowrl.runs.recording import replayable_nodes
from flowrl.runs.tape_file import PairTokens, Tape, graph_of_tape
from flowrl.runtime.token_contents import decode_token

MAX_COLUMNS = 6  # of a token, in the list of edges


def firing_text(tape: Tape) -> str:
    """Describe the tape of a failed firing."""
    firing = tape.facts.firing
    assert firing is not None
    stateless = firing["stateless"]
    if stateless:
        state = f"the node's state is not on the tape ({stateless}), so it is as in the beginning"
    else:
        state = "the node has the state in which it failed: what the firing had changed is changed"
    inputs = [f"  {port}: {_value_text(value)}" for port, value in tape.inputs.items()]
    return "\n".join([str(firing["error"]), *inputs, f"  {state}", *version_notes(tape)])


def tape_text(tape: Tape) -> str:
    """Describe a tape: its run, its edges, and the nodes that can be replayed."""
    facts = tape.facts
    begins = f"from round {facts.rounds:,} on" if facts.rounds else "from the beginning"
    ends = (
        ""
        if tape.train_iters is not None
        else "; without an end: the run failed, was killed, or is active"
    )
    rows = [
        _pair_row(pair.name, recorded, pair.kind)
        for pair, recorded in zip(facts.pairs, tape.recorded, strict=True)
        if recorded.first is not None
    ]
    heads = ["edge", "recorded", "size", "rounds", "of"]
    lines = [f"{facts.graph}, seed {facts.seed}, {begins}{ends}"]
    lines += table_lines([heads, *rows], "lrrrl") if rows else ["no tokens"]
    nodes = replayable_nodes(graph_of_tape(tape), facts.inputs)
    shown = ", ".join(nodes) or "none: no node has all of its inputs on the tape"
    return "\n".join([*lines, f"nodes that can be replayed: {shown}", *version_notes(tape)])


def version_notes(tape: Tape) -> list[str]:
    """Return notes about libraries of other versions, on which bits may depend."""
    here = library_versions()
    return [
        f"note: recorded with {name} {version}, and here is {here.get(name, 'none')}; bits may depend on it"
        for name, version in tape.facts.libraries.items()
        if here.get(name) != version
    ]


def replay_notes(tape: Tape) -> list[str]:
    """Return what to know of a tape against which nodes are replayed."""
    notes = version_notes(tape)
    if tape.train_iters is None:
        notes.append(
            "note: the tape has no end: its run was killed, has failed or is active, or the file was cut"
        )
    return notes


def _pair_row(name: str, recorded: PairTokens, kind: str) -> list[str]:
    assert recorded.first is not None
    first = recorded.first
    count = count_text(recorded.count, "version" if kind == "state" else "token")
    rounds = f"{first.position[0]:,}..{recorded.last_round:,}"
    return [name, count, size_text(recorded.nbytes), rounds, _content_text(first.content)]


def _content_text(content: bytes) -> str:
    """Describe the value of a token."""
    return _value_text(decode_token(content)[0])


def _value_text(value: Any) -> str:
    """Describe a value: its columns, or its type."""
    if isinstance(value, Batch):
        return f"{count_text(len(value), 'row')} of {_names_text(value.columns)}"
    if isinstance(value, State):
        return f"arrays {_names_text(value.arrays)}"
    return type(value).__name__


def _names_text(names: Iterable[str]) -> str:
    shown = list(names)
    more = f", … ({len(shown)})" if len(shown) > MAX_COLUMNS else ""
    return ", ".join(shown[:MAX_COLUMNS]) + more
