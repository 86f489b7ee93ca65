"""What flowrl says of a graph and of a run, as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from flowrl.checks.check import CheckedGraph
from flowrl.checks.lossy_edges import fires_without_rate
from flowrl.checks.serial_program import Schedule
from flowrl.core.wording import count_text
from flowrl.graph.model import Edge, paths_text
from flowrl.runs.result import RunResult
from flowrl.runtime.executor import InstanceTimes


def check_text(checked: CheckedGraph) -> str:
    """The verdict on a graph: its problems, or its schedule, edges and determinism."""
    lines = [str(p) for p in checked.problems]
    lines += [f"warning: {w}" for w in checked.warnings]
    name = checked.graph.name
    if checked.problems:
        count = len(checked.problems)
        return "\n".join([*lines, "", f"{name}: {count} problem{'s' if count > 1 else ''}"])
    lines.append(
        f"{name}: sound. {len(checked.graph.nodes)} nodes, {len(checked.graph.edges)} edges."
    )
    lines += ["", "Schedule", *(f"  {line}" for line in schedule_lines(checked))]
    lines += ["", "Edges", *edge_lines(checked)]
    lines += ["", *determinism_lines(checked)]
    if checked.undescribed:
        lines += ["", *unchecked_lines(checked)]
    return "\n".join(lines)


def unchecked_lines(checked: CheckedGraph) -> list[str]:
    """What was not checked because envs were not made, and for which nodes."""
    return [
        "Not checked, because envs were not made: columns, numbers of rows, memory, the rounds of warm-ups given in",
        "steps, and what these nodes say of their determinism:",
        *(f"  {name}: {reason}" for name, reason in checked.undescribed.items()),
    ]


def schedule_lines(checked: CheckedGraph) -> list[str]:
    """The serial program, a line for each of its parts."""
    program = checked.program
    lines = []
    for number, warm in enumerate(program.warmup, 1):
        lines.append(f"warm-up {number}, {warm.rounds} rounds: {_firings(checked, warm.schedule)}")
    lines += unscheduled_phase_lines(checked)
    lines.append(f"every round: {_firings(checked, program.round)}")
    for paced in program.paced:
        lines.append(
            f"every {paced.every} firings of {paced.source.node}: {_firings(checked, paced.schedule)}"
        )
    return lines


def _firings(checked: CheckedGraph, schedule: Schedule) -> str:
    shown, often = [], fires_without_rate(schedule)
    for name in schedule.order:
        replicas = checked.graph.nodes[name].replicas
        times = schedule.firings[name]
        text = name if times == 1 else f"{name} x {times}"
        text = f"{name}, when it can" if name in often else text
        shown.append(f"{text} ({replicas} replicas)" if replicas > 1 else text)
    return ", ".join(shown)


def edge_lines(checked: CheckedGraph) -> list[str]:
    """A line for each edge: from, to, type, rates, staleness."""
    rows = [
        (str(e).partition(" <->")[0] if e.kind == "link" else ", ".join(map(str, e.sources)), e)
        for e in checked.graph.edges
    ]
    width = max((len(a) for a, _ in rows), default=0)
    to_width = max((len(str(e.to)) for _, e in rows), default=0)
    arrows = {"link": "<->", "state": "=>", "stream": "->"}
    return [
        f"  {a:<{width}} {arrows[e.kind]:<3} {e.to!s:<{to_width}}  {edge_facts(checked, e)}"
        for a, e in rows
    ]


def edge_facts(checked: CheckedGraph, edge: Edge) -> str:
    """What flows on an edge, and how stale it is."""
    port_type = checked.graph.nodes[edge.to.node].port(edge.to.port).type
    if edge.kind == "link":
        return f"{port_type}, calls"
    if edge.kind == "state":
        return f"{port_type}, {staleness(edge)}"
    program = checked.program
    schedule = program.schedule_of(edge.to.node)
    tokens = schedule.firings.get(edge.to.node, 0) * schedule.rates.get(edge.to, 1)
    facts = [
        port_type,
        f"{tokens} token{'s' if tokens != 1 else ''} a round",
        f"room for {program.capacity.get(edge.to)}",
    ]
    if edge.to in program.initial:
        facts.append(f"{program.initial[edge.to]} initial")
    if edge.merge == "any":
        facts.append("merge any")
    if edge.when_full != "wait":
        facts.append(edge.when_full)
    return ", ".join(facts)


def staleness(edge: Edge) -> str:
    """How old the version is that a state edge shows."""
    if edge.latest:
        return "latest (whatever it is)"
    if edge.every is not None:
        return f"every {edge.every} versions"
    if edge.lag == 0:
        return "lag 0 (what the last round learned)"
    return f"lag {edge.lag} ({edge.lag} round{'s' if edge.lag > 1 else ''} older than the last)"


def unscheduled_phase_lines(checked: CheckedGraph) -> list[str]:
    """A line for each warm-up phase whose rounds are unknown, because its nodes were not described."""
    scheduled = [warm.phase for warm in checked.program.warmup]
    return [
        f"warm-up, {phase.steps} env steps: {paths_text(phase)}"
        for phase in checked.graph.phases
        if phase not in scheduled
    ]


def determinism_lines(checked: CheckedGraph) -> list[str]:
    """Whether the same seed gives the same bits, and if not, why."""
    if checked.deterministic and checked.undescribed:
        return ["Deterministic, as far as was checked."]
    if checked.deterministic:
        return ["Deterministic: the same seed gives the same bits, in every placement."]
    return ["Not deterministic:", *(f"  {reason}" for reason in checked.reasons)]


def check_json(checked: CheckedGraph) -> dict[str, object]:
    """The keys of `check --json`."""
    program = checked.program
    return {
        "ok": checked.ok,
        "deterministic": checked.deterministic,
        "reasons": checked.reasons,
        "nodes": {
            n: {
                "type": s.type,
                "replicas": s.replicas,
                "firings": program.schedule_of(n).firings.get(n, 0),
            }
            for n, s in checked.graph.nodes.items()
        },
        "edges": [
            {
                "kind": e.kind,
                "from": [str(s) for s in e.sources],
                "to": str(e.to),
                "type": checked.graph.nodes[e.to.node].port(e.to.port).type,
                **(
                    {"lag": e.lag, "every": e.every, "latest": e.latest}
                    if e.kind == "state"
                    else {}
                ),
                **({"capacity": program.capacity.get(e.to)} if e.kind == "stream" else {}),
            }
            for e in checked.graph.edges
        ],
        "schedule": {
            "warmup": [{"rounds": w.rounds, "firings": w.schedule.firings} for w in program.warmup],
            "round": program.round.firings,
            "order": program.round.order,
            "paced": [
                {"source": str(p.source), "every": p.every, "firings": p.schedule.firings}
                for p in program.paced
            ],
        },
        "problems": [{"where": p.where, "what": p.what, "hint": p.hint} for p in checked.problems],
        "warnings": [{"where": p.where, "what": p.what, "hint": p.hint} for p in checked.warnings],
        "envs_checked": not checked.undescribed,
        "not_checked": checked.undescribed,
    }


def bottleneck_sentence(instance_times: Iterable[InstanceTimes], firing_s: float) -> str:
    """Where the time of a run went (without making its nodes), in a sentence."""
    fired = [account for account in instance_times if account.busy_s and firing_s]
    if not fired:
        return "nothing fired"
    first, *others = sorted(fired, key=lambda a: (-a.busy_s, a.key))
    shown = [_share(a, firing_s) for a in others[:3] if a.busy_s >= 0.01 * firing_s or _wait_of(a)]
    share = f"{first.busy_s / firing_s:.0%}"
    text = f"{first.key} is the bottleneck: it fired for {share} of the time"
    return f"{text} (then {', '.join(shown)})" if shown else text


def _share(account: InstanceTimes, firing_s: float) -> str:
    """How much an instance fired, and what it mostly waited for."""
    text = f"{account.key} {account.busy_s / firing_s:.0%}"
    wait = _wait_of(account)
    if wait is None or wait[0] < 0.01 * firing_s:
        return text
    s, kind, edge = wait
    return f"{text}, {kind} {s / firing_s:.0%} {edge}"


def _wait_of(account: InstanceTimes) -> tuple[float, str, str] | None:
    """The longest of an instance's waits."""
    waits = [(s, "waiting", f"for {edge}") for edge, s in account.waiting_s.items()]
    waits += [(s, "blocked", f"on {edge}") for edge, s in account.blocked_s.items()]
    return max(waits, default=None)


def run_text(result: RunResult) -> str:
    """How a run ended, in some lines; why it failed was told with the error."""
    done = f"{count_text(result.env_steps, 'env step')}, {count_text(result.train_iters, 'train iteration')}"
    pace = f"in {result.wall_s:.1f} s ({result.env_steps_per_s:,.0f} env steps/s)"
    lines = [
        "failed: its folder has an error.txt"
        if result.status == "failed"
        else f"{result.status}: {result.why}",
        f"{done}, {count_text(result.episodes, 'episode')} {pace}",
    ]
    if result.eval_return is not None:
        best = "" if result.best_return is None else f" (best {return_text(result.best_return)})"
        lines.append(f"evaluation return {return_text(result.eval_return)}{best}")
    if result.bottleneck:
        lines.append(result.bottleneck)
    lines += [f"note: {line}" for line in result.happened]
    lines += [f"warning: {line}" for line in result.warnings]
    if result.repeat:
        lines.append(f"the same again: {result.repeat}")
    if result.digest:
        lines.append(f"digest {result.digest}")
    lines.append(f"run folder {result.run_dir}")
    return "\n".join(lines)


def return_text(value: float) -> str:
    """A return as lines show it: what is small has three digits too."""
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:#.3g}"
