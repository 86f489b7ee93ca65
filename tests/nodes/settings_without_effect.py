"""Finds settings of the bundled graphs that change nothing.

python -m tests.nodes.settings_without_effect [GRAPH…] [--only PATH…] [--without PATH…] [--each-node]

A path is that of a setting, or of a part or node with all of its settings, such as `policy` and `buffer.alpha`. The
settings of a section are changed for all nodes, or with `--each-node` for one node at a time (`learner.policy.lr`).

Each setting of each node and part is changed to other values, one at a time, and the graph runs for a few train
iterations. A change that `check` calls sound must change something: a token, a weight, a metric, a line of the log, or
a file. The table has a line for each setting of which no value does. Those in `LATER` have their effect in longer runs,
or in other placements, and their descriptions say so.
"""

from __future__ import annotations

import sys
import tempfile
import typing
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic.fields import FieldInfo

import flowrl
from flowrl.core.config import Config, PartSpec, field_extras
from flowrl.core.errors import GraphError
from flowrl.core.written_config import written_value
from flowrl.graph.bundled import bundled_graphs
from flowrl.graph.model import Graph, NodeSpec
from flowrl.machine.numerics import reset_numerics
from flowrl.nodes.schedules import NumberSchedule
from flowrl.nodes.targets import Target
from tests.sites.bundled_cases import SEED, SMALL, Case, collect_results, working_directory
from tests.sites.run_comparison import Results

Outcome = Literal["effect", "none", "refused", "fails"]
REPLAYED_ITERS, ON_POLICY_ITERS = 13, 3  # with an evaluation in either

# Settings by the end of their path, and why a short run does not show their effect.
LATER = {
    "size": "drops the oldest rows when there are more",
    "store_once": "saves memory",
    "frames": "saves memory",
    "env_count": "envs side by side; the episodes are the same",
    "average": "decides which weights are the best",
    "dynamic_seeds": "for managers that are reset by hand",
    "step_timeout_s": "an error where a step takes longer",
    "reset_timeout_s": "an error where a reset takes longer",
    "log_every_pushes": "comes less often than the runs here are long",
    "log_every_steps": "comes less often than the runs here are long",
    "log_every_iters": "comes less often than the runs here are long",
    "log_every_tokens": "comes less often than the runs here are long",
    "most_steps": "an error where an episode is longer",
    "stop_value": "ends the run when it is reached",
    "expert_rows": "drops the oldest rows when there are more",
    "newest_rows": "drops the oldest rows when there are more",
    "most_players": "drops the oldest versions when there are more",
    "size_bytes": "drops the oldest rows when there are more",
    "device": "this machine has no other device",
    "reduce": "for groups of learners",
    "compile": "may change rounding, and costs time at the start",
}


@dataclass(frozen=True)
class Setting:
    """A setting by its path as `--set` takes it, its value, and its declaration."""

    path: str
    value: Any
    field: FieldInfo

    def other_values(self) -> list[Any]:
        """Other values of its type, valid or not; `check` tells."""
        found: list[Any] = []
        for value in _candidates(self.value, self.field):
            if value != self.value and value not in found:
                found.append(value)
        return found


class Subject(Protocol):
    """What has settings, and can run with some of them changed."""

    def settings(self) -> Sequence[Setting]:
        """All settings with their values."""

    def results(self, changes: Mapping[str, Any]) -> Any:
        """Everything that a run gives; None if `check` refuses the changes."""


@dataclass(frozen=True)
class Finding:
    """What the values of a setting did: one has an effect, or none, or a sound one fails, or all are refused."""

    path: str
    value: Any
    outcome: Outcome
    tried: list[Any]
    error: str = ""


def examine(
    subject: Subject, only: Sequence[str] = (), without: Sequence[str] = ()
) -> Iterator[Finding]:
    """Yield a finding for each setting of which other values are known."""
    before = subject.results({})
    for setting in subject.settings():
        chosen = not only or any(_is_under(setting.path, path) for path in only)
        left_out = any(_is_under(setting.path, path) for path in without)
        if chosen and not left_out and (values := setting.other_values()):
            yield examine_setting(subject, setting, values, before)


def examine_setting(
    subject: Subject, setting: Setting, values: Sequence[Any], before: Any
) -> Finding:
    """Try values until one has an effect, or fails."""
    sound = []
    for value in values:
        try:
            found = subject.results({setting.path: value})
        except Exception as error:  # a sound graph must not fail, whatever the reason is
            text = f"{type(error).__name__}: {error}"
            return Finding(setting.path, setting.value, "fails", [value], text)
        if found is None:
            continue
        if found != before:
            return Finding(setting.path, setting.value, "effect", [value])
        sound.append(value)
    return Finding(setting.path, setting.value, "none" if sound else "refused", sound)


def _is_under(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}.")


# other values


def _candidates(value: Any, field: FieldInfo) -> list[Any]:
    types = [field.annotation, *typing.get_args(field.annotation)]
    literals = [x for t in types if typing.get_origin(t) is Literal for x in typing.get_args(t)]
    if literals:
        return literals
    if isinstance(value, Target):
        return [{"every_iters": None, "tau": 0.3}, {"every_iters": 2, "tau": None}]
    if isinstance(value, NumberSchedule):
        return [{"start": value.start * 0.5, "end": value.end * 0.5}]
    return _other_numbers(value, types)


def _other_numbers(value: Any, types: Sequence[Any]) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int) and float not in types:
        return [value + 1, 2 * value + 1, value // 2, value - 1]
    if isinstance(value, int | float):
        return [value * 0.5, value + 0.3, value * 3.0, 0.25]
    if value is None:
        numbers: dict[Any, list[Any]] = {
            int: [2, 5, 16],
            float: [0.3, 1.5, 1e-6],
            bool: [True, False],
        }
        return [x for kind, others in numbers.items() if kind in types for x in others]
    if isinstance(value, list) and value and all(isinstance(x, int) for x in value):
        return [[*value[:-1], value[-1] + 8], value[1:]]
    return []


# the settings of a graph


def settings_of(graph: Graph, each_node: bool = False) -> Iterator[Setting]:
    """Yield the settings of all nodes and their parts; those of a section once, or for each node that takes them."""
    seen: set[str] = set()
    for name, spec in graph.nodes.items():
        for setting in _settings_in(spec.config, name, None if each_node else spec):
            if setting.path not in seen:
                seen.add(setting.path)
                yield setting


def _settings_in(config: Config, path: str, spec: NodeSpec | None) -> Iterator[Setting]:
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, PartSpec):
            section = field_extras(field).get("shared")
            is_section = spec is not None and section in spec.shared
            below = str(section) if is_section else f"{path}.{name}"
            yield from _settings_in(value.config, below, None)
        else:
            yield Setting(f"{path}.{name}", value, field)


class SmallGraph:
    """A graph, bundled or in a file, whose runs are short; bundled ones have small settings."""

    def __init__(self, name: str, folder: Path, each_node: bool = False) -> None:
        case, self._each_node = Case(name, "iters"), each_node
        self.name, self._folder, self._runs = name, folder, 0
        self._sets = SMALL.get(Path(name).stem, {})
        self._iters = REPLAYED_ITERS if case.is_off_policy else ON_POLICY_ITERS

    def settings(self) -> list[Setting]:
        graph = flowrl.load(self.name, self._sets).check().require_sound().graph
        return list(settings_of(graph, self._each_node))

    def results(self, changes: Mapping[str, Any]) -> Results | None:
        sets = {**self._sets, **{path: written_value(v) for path, v in changes.items()}}
        with suppress(GraphError):
            if not flowrl.load(self.name, sets).check().ok:
                return None
        folder = self._folder / f"{self._runs}"
        self._runs += 1
        folder.mkdir()
        with working_directory(folder):
            flowrl.load(self.name, sets).run(
                seed=SEED, train_iters=self._iters, out=folder / "r", hash_tokens=True, quiet=True
            )
        return without_settings(collect_results(folder / "r", folder))


def without_settings(results: Results) -> Results:
    """The results without what only repeats the settings, such as the metadata of checkpoints."""
    found = {}
    for name, value in results.items():
        is_checkpoint = isinstance(value, dict) and "metadata" in value
        found[name] = (
            {k: v for k, v in value.items() if k != "metadata"} if is_checkpoint else value
        )
    return found


def main(arguments: Sequence[str]) -> int:
    """Examine graphs, and print a line for each setting without an effect, or with which a run fails."""
    parser = ArgumentParser("python -m tests.nodes.settings_without_effect", description=__doc__)
    parser.add_argument("graphs", nargs="*", default=sorted(bundled_graphs()))
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--without", nargs="+", default=[])
    parser.add_argument("--each-node", action="store_true")
    options = parser.parse_args(arguments)
    reset_numerics(1)
    wrong = 0
    for name in options.graphs:
        with tempfile.TemporaryDirectory() as folder:
            graph = SmallGraph(name, Path(folder), options.each_node)
            for found in examine(graph, options.only, options.without):
                wrong += report(name, found)
    return wrong


def report(graph: str, found: Finding) -> bool:
    """Print a finding that is wrong, and return whether it is."""
    if found.outcome not in ("none", "fails"):
        return False
    later = LATER.get(found.path.rpartition(".")[2])
    if found.outcome == "none" and later:
        return False
    print(
        f"{graph}: {found.path} = {found.value!r}: {found.outcome} {found.tried} {found.error}",
        flush=True,
    )
    return True


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
