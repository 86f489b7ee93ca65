"""Population-based training (Jaderberg et al. 2017): runs of one graph that copy the best and change their settings.

DIR/population.json    what was asked for
DIR/members.jsonl      a line for each member of each generation: its run, its parent, its settings and its score
DIR/g0-m0/, …          the run of each member of each generation

Every run after the first generation is a fork of a snapshot of an earlier one. A member that goes on by itself
continues the random numbers of its parent, so that it has the bits of a run that was never cut.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.checks.check import CheckedGraph, check_placed
from flowrl.core.errors import LOADING_STATE, GraphError, NodeError, RunError, UsageError
from flowrl.core.json_text import parse_object
from flowrl.core.text_table import table_lines
from flowrl.graph.expand import expand
from flowrl.graph.loading import load_graph
from flowrl.graph.model import Limits
from flowrl.graph.output_paths import refuse_shared_outputs
from flowrl.graph.settings import Setting
from flowrl.runs.disk_errors import explain_disk_errors
from flowrl.runs.folder import SUMMARY_FILE
from flowrl.runs.fork import forked_run
from flowrl.runs.perturbation import Perturbation, first_values
from flowrl.runs.result import RunResult
from flowrl.runs.resume import require_ended
from flowrl.runs.run import Run

POPULATION_FILE, MEMBERS_FILE = "population.json", "members.jsonl"
FIRST_CHANGES = 3  # of each setting, before the first generation, so that members begin differently
ENDED = ("finished", "solved")  # of the status of a run
REPLACED_SHARE = 0.25  # of the members, at least one


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a generation, whose run has ended."""

    generation: int
    member: int
    run: str  # the name of its folder
    parent: str | None  # that of the run whose snapshot it began with
    settings: Mapping[str, Setting]
    score: float  # the mean return of its last evaluation
    env_steps: int
    digest: str
    status: str

    @property
    def origin(self) -> str:
        """How its run began, in words."""
        values = ", ".join(f"{key} {_value_text(value)}" for key, value in self.settings.items())
        if self.parent is None:
            return f"begun with {values}"
        is_own = self.parent.endswith(f"-m{self.member}")
        return f"{'continued from' if is_own else 'a copy of'} {self.parent} with {values}"


@dataclass(frozen=True, slots=True)
class Plan:
    """How the run of a member begins."""

    parent: str | None
    settings: Mapping[str, Setting]
    is_copy: bool  # of another member, with other settings and random numbers


class Population:
    """Trains all members, generation by generation. What a folder holds already is not computed again."""

    def __init__(
        self,
        graph: str,
        perturbations: Sequence[Perturbation],
        *,
        out: Path,
        members: int,
        generations: int,
        steps: int,
        settings: Mapping[str, str] | None = None,
        seed: int | None = None,
        placement: str = "serial",
        on_member: Callable[[Member], None] = lambda member: None,
    ) -> None:
        """Each generation takes `steps` env steps. `on_member` is called with each member whose run has ended."""
        self._graph, self._settings, self._placement = graph, dict(settings or {}), placement
        self._checked = self._checked_with({})
        written = self._checked.graph
        self._seed = written.seed if seed is None else seed
        self._perturbations, self._on_member = tuple(perturbations), on_member
        self.out, self._members, self._generations = out, members, generations
        self._steps = steps
        if members < 2:
            raise UsageError(f"population: {members} member cannot copy another; take 2 or more")
        if not written.nodes_of_role("evaluator"):
            raise UsageError(
                f"{written.name}: its graph has no evaluator, by which members are compared; add one"
            )
        refuse_shared_outputs(written, "population")
        self._first = first_values(written, self._perturbations)
        for one in self._perturbations:
            for choice in one.choices:  # a wrong one is an error before anything is trained
                self._checked_with({one.key: choice})
        self._open()

    def train(self) -> list[Member]:
        """Train all generations, and return the members of the last one, the best first.

        A run that reaches its goal ends the training with its generation.
        """
        plans = [Plan(None, values, False) for values in self._first_settings()]
        ended: list[Member] = []
        for generation in range(self._generations):
            ended = [self._train_member(generation, m, plan) for m, plan in enumerate(plans)]
            self._write_members(generation, ended)
            if any(member.status == "solved" for member in ended):
                break
            plans = self._next_plans(generation, ended)
        return sorted(ended, key=lambda member: (-member.score, member.member))

    def _checked_with(self, changed: Mapping[str, str]) -> CheckedGraph:
        loaded = load_graph(self._graph, {**self._settings, **changed})
        return check_placed(loaded, self._placement, has_hosts=False).require_sound()

    def _first_settings(self) -> list[Mapping[str, Setting]]:
        """The settings of the first generation: as written, and for the others changed several times."""
        found: list[Mapping[str, Setting]] = [self._first]
        for member in range(1, self._members):
            values, rng = dict(self._first), self._rng(f"first/{member}")
            for _ in range(FIRST_CHANGES):
                values = self._perturbed(values, rng)
            found.append(values)
        return found

    def _next_plans(self, generation: int, ended: Sequence[Member]) -> list[Plan]:
        """Let the worst members copy the best ones with changed settings, and the others go on."""
        ranked = sorted(ended, key=lambda member: (-member.score, member.member))
        count = max(1, int(REPLACED_SHARE * len(ranked)))
        best, worst = ranked[:count], {member.member for member in ranked[-count:]}
        plans = []
        for member in ended:
            if member.member not in worst:
                plans.append(Plan(member.run, member.settings, False))
                continue
            rng = self._rng(f"copy/{generation}/{member.member}")
            source = best[int(rng.integers(count))]
            plans.append(Plan(source.run, self._perturbed(source.settings, rng), True))
        return plans

    def _perturbed(
        self, settings: Mapping[str, Setting], rng: np.random.Generator
    ) -> dict[str, Setting]:
        """Change every setting. A value that the graph refuses is not taken: the other one is, or the old one stays."""
        found = dict(settings)
        for one in self._perturbations:
            candidates = one.candidates(settings[one.key], rng)
            sound = (value for value in candidates if self._is_sound({**found, one.key: value}))
            found[one.key] = next(sound, settings[one.key])
        return found

    def _is_sound(self, settings: Mapping[str, Setting]) -> bool:
        try:
            self._checked_with(_written_settings(settings))
        except GraphError:
            return False
        return True

    def _train_member(self, generation: int, member: int, plan: Plan) -> Member:
        name = f"g{generation}-m{member}"
        folder = self.out / name
        summary = _read_summary(folder)
        if summary is None or summary.get("status") not in ENDED:
            if folder.exists():  # its run was killed or stopped, and is computed again
                require_ended(folder)
                shutil.rmtree(folder)
            summary = self._run(folder, generation, member, plan).as_dict()
        if summary["eval_return"] is None:
            raise RunError(
                f"{folder}: the run of this member was not evaluated in {self._steps:,} env steps; evaluate more "
                "often (`every`), or take longer generations"
            )
        ended = Member(
            generation,
            member,
            name,
            plan.parent,
            plan.settings,
            float(summary["eval_return"]),
            int(summary["env_steps"]),
            str(summary["digest"]),
            str(summary["status"]),
        )
        self._on_member(ended)
        return ended

    def _run(self, folder: Path, generation: int, member: int, plan: Plan) -> RunResult:
        limits = Limits(steps=(generation + 1) * self._steps)
        settings = _written_settings(plan.settings)
        if plan.parent is None:
            run = Run(
                self._checked_with(settings),
                seed=self._seed + member,
                limits=limits,
                out=folder,
                placement=self._placement,
                saves_at_end=True,
            )
        else:
            run, _, _ = forked_run(
                self.out / plan.parent,
                settings=settings if plan.is_copy else {},
                seed=self._seed_for(f"run/{generation}/{member}") if plan.is_copy else None,
                same_random=not plan.is_copy,
                limits=limits,
                placement=self._placement,
                out=folder,
                saves_at_end=True,
            )
        try:
            result = run.run()
        except NodeError as error:
            if error.doing != LOADING_STATE or not plan.is_copy:
                raise
            changed = ", ".join(f"{key} {_value_text(v)}" for key, v in plan.settings.items())
            raise RunError(
                f"{folder}: it cannot begin as a copy of {plan.parent} with {changed}: {error}; perturb only settings "
                "that leave the states of nodes as they are"
            ) from error
        if result.status not in ENDED:
            raise KeyboardInterrupt(result.why)
        return result

    def _open(self) -> None:
        """Write what was asked for, or refuse a folder of another population."""
        graph = replace(self._checked.graph, limits=Limits(), placements={}, seed=0)
        asked = {
            "graph": hashlib.sha256(expand(graph).encode()).hexdigest(),
            "members": self._members,
            "steps": self._steps,
            "seed": self._seed,
            "perturbations": [asdict(one) for one in self._perturbations],
        }
        path = self.out / POPULATION_FILE
        with explain_disk_errors(self.out):
            if not path.is_file():
                self.out.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(asked) + "\n", encoding="utf-8")
                return
        found = _read_object(path)
        changed = [
            key for key, value in json.loads(json.dumps(asked)).items() if found.get(key) != value
        ]
        if changed:
            raise UsageError(
                f"--out {self.out}: it contains a population with another {', '.join(changed)}; continue it with the "
                "same, or choose another folder"
            )

    def _write_members(self, generation: int, ended: Sequence[Member]) -> None:
        path = self.out / MEMBERS_FILE
        with explain_disk_errors(self.out):
            earlier = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
            kept = [line for line in earlier if _generation_of(line) not in (None, generation)]
            lines = [*kept, *(json.dumps(asdict(member)) for member in ended)]
            new = path.with_name(f"{path.name}.{os.getpid()}.new")
            new.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            os.replace(new, path)

    def _rng(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng(self._seed_for(purpose))

    def _seed_for(self, purpose: str) -> int:
        text = f"{self._seed}/population/{purpose}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def members_table(members: Sequence[Member]) -> str:
    """A line for each member, with its parent and its settings."""
    head = ["run", "parent", "score", *(members[0].settings if members else ())]
    rows = [
        [m.run, m.parent or "-", f"{m.score:.2f}", *(_value_text(v) for v in m.settings.values())]
        for m in members
    ]
    return "\n".join(table_lines([head, *rows], "ll"))


def _written_settings(settings: Mapping[str, Setting]) -> dict[str, str]:
    """Settings as `--set` takes them; a text is YAML already."""
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in settings.items()}


def _value_text(value: Setting) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _generation_of(line: str) -> Any:
    """The generation of a line of `members.jsonl`; None if the line is damaged, as each is written again."""
    try:
        return parse_object(line).get("generation")
    except ValueError:
        return None


def _read_summary(folder: Path) -> dict[str, Any] | None:
    path = folder / SUMMARY_FILE
    return _read_object(path) if path.is_file() else None


def _read_object(path: Path) -> dict[str, Any]:
    try:
        return parse_object(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from None
