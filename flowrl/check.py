"""Is a graph sound? Everything that can be known before anything is made, and every problem at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flowrl.batch import Schema
from flowrl.errors import GraphError, Problem, nearest
from flowrl.facts import describe_all
from flowrl.graph import Edge, Graph, NodeSpec, PortRef
from flowrl.loading import Loaded
from flowrl.node import Facts
from flowrl.ports import In, Input, Link, Out, Output, Service, StateIn, StateOut
from flowrl.program import Program, plan, plan_warmup


@dataclass(slots=True)
class Checked:
    """A graph with its program and facts, and what is wrong with it."""

    graph: Graph
    program: Program
    facts: dict[str, Facts] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)  # errors
    warnings: list[Problem] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)  # why runs may differ

    @property
    def ok(self) -> bool:
        """Sound: it can run."""
        return not self.problems

    @property
    def deterministic(self) -> bool:
        """The same seed gives the same bits."""
        return not self.reasons

    def demand(self) -> Checked:
        """Itself if it is sound; else raises all problems."""
        if self.problems:
            raise GraphError(self.problems)
        return self


def check(loaded: Loaded) -> Checked:
    """Check a graph as far as it could be read."""
    graph = loaded.graph
    problems = list(loaded.problems)
    broken = bool(problems)
    problems.extend(_connections(graph, broken))
    program = plan(graph, problems)
    checked = Checked(graph, program)
    checked.facts, schemas = describe_all(graph, program, problems)
    problems.extend(_columns(graph, checked.facts, schemas))
    steps = {n: f.env_steps for n, f in checked.facts.items() if f.env_steps is not None}
    if not broken:
        plan_warmup(graph, program, steps, problems)
        problems.extend(_warmup_columns(checked))
        problems.extend(_first_rows(checked))
    problems.extend(_memory(checked))
    problems.extend(_staleness(graph))
    problems.extend(_failures(graph))
    checked.warnings.extend(_on_policy(checked))
    checked.reasons.extend(_reasons(checked))
    checked.problems = list(dict.fromkeys(problems))
    return checked


# connections


def _connections(graph: Graph, broken: bool) -> Iterator[Problem]:
    """Required ports that nothing is connected to, and links that do not fit."""
    fed = {e.to for e in graph.edges}
    taken: dict[PortRef, list[Edge]] = {}
    for edge in graph.edges:
        for source in edge.sources:
            taken.setdefault(source, []).append(edge)
    for name, spec in graph.nodes.items():
        for port, kind in spec.cls.ports.items():
            ref = PortRef(name, port)
            if kind.optional or broken:
                continue
            if isinstance(kind, Input) and ref not in fed:
                yield _unfed(graph, spec, port, kind)
            elif isinstance(kind, Output) and ref not in taken:
                yield _untaken(graph, spec, port, kind)
    for ref, edges in taken.items():
        service = graph.nodes[ref.node].port(ref.port)
        if isinstance(service, Service) and service.stateful and len(edges) > 1:
            clients = ", ".join(sorted(e.to.node for e in edges))
            yield Problem(
                str(edges[-1].mark),
                f"the service {ref} has {len(edges)} clients ({clients}); it keeps state, so it can have one",
                f"give each client a node of its own such as '{ref.node}'",
            )
    yield from _link_cycle(graph)


def _unfed(graph: Graph, spec: NodeSpec, port: str, kind: Input) -> Problem:
    outs = (Out, StateOut) if not isinstance(kind, Link) else (Service,)
    fits = [
        f"{n}.{p}"
        for n, s in graph.nodes.items()
        for p, o in s.cls.ports.items()
        if isinstance(o, outs) and o.kind == kind.kind and o.type == kind.type and n != spec.name
    ]
    arrow = "<->" if isinstance(kind, Link) else "->"
    word = {"stream": "input", "state": "state input", "link": "link"}[kind.kind]
    first = fits[0].partition(".")[0] if fits else ""
    hint = (
        f"add '{first} {arrow} {spec.name}.{port}'"
        if fits
        else f"no node of the graph gives '{kind.type}'"
    )
    return Problem(
        str(spec.mark()),
        f"nodes.{spec.name}: the {word} '{port}' ({kind.type}) is not connected",
        hint,
    )


def _untaken(graph: Graph, spec: NodeSpec, port: str, kind: Output) -> Problem:
    ins = (In, StateIn) if not isinstance(kind, Service) else (Link,)
    fits = [
        f"{n}.{p}"
        for n, s in graph.nodes.items()
        for p, i in s.cls.ports.items()
        if isinstance(i, ins) and i.kind == kind.kind and i.type == kind.type and n != spec.name
    ]
    word = {"stream": "output", "state": "state output", "link": "service"}[kind.kind]
    arrow = "<->" if isinstance(kind, Service) else "->"
    hint = (
        f"add '{spec.name} {arrow} {fits[0]}'"
        if fits
        else "remove the node, or add one that takes it"
    )
    return Problem(
        str(spec.mark()), f"nodes.{spec.name}: nobody takes the {word} '{port}' ({kind.type})", hint
    )


def _link_cycle(graph: Graph) -> Iterator[Problem]:
    calls: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        if edge.kind == "link":
            calls.setdefault(edge.to.node, []).append(edge)
    done: set[str] = set()
    for start in sorted(calls):
        path: list[str] = []
        todo: list[tuple[str, int]] = [(start, 0)]
        while todo:
            name, depth = todo.pop()
            del path[depth:]
            if name in path:
                ring = " <-> ".join([*path[path.index(name) :], name])
                yield Problem(
                    str(calls[name][0].mark),
                    f"the links {ring} call each other in a circle",
                    "cut one",
                )
                return
            if name not in done:
                path.append(name)
                todo += [(e.source.node, depth + 1) for e in calls.get(name, ())]
        done |= set(path)


# columns


def _columns(
    graph: Graph, facts: Mapping[str, Facts], schemas: Mapping[PortRef, Schema | None]
) -> Iterator[Problem]:
    """Columns that a consumer needs against those that it is given."""
    for edge in graph.edges:
        needs = facts[edge.to.node].needs.get(edge.to.port) if edge.to.node in facts else None
        given = schemas.get(edge.to)
        if needs is None or given is None:
            continue
        for name, column in needs.items():
            if name not in given:
                shown = ", ".join(f"{n} {c}" for n, c in given.items())
                yield Problem(
                    str(edge.mark),
                    f"{edge.to} needs the column '{name}' ({column}), and {_sources(edge)} does not give it",
                    f"it gives {shown}; {nearest(name, given)}"
                    if nearest(name, given)[:3] == "did"
                    else f"it gives {shown}",
                )
            elif given[name] != column:
                yield Problem(
                    str(edge.mark),
                    f"{edge.to} needs the column '{name}' as {column}, and {_sources(edge)} gives it as {given[name]}",
                    "convert it in between, or change the node that makes it",
                )


def _sources(edge: Edge) -> str:
    return ", ".join(map(str, edge.sources))


def _warmup_columns(checked: Checked) -> Iterator[Problem]:
    """A phase's settings must not change what an edge carries."""
    graph = checked.graph
    for warm in checked.program.warmup:
        for node, settings in warm.phase.settings.items():
            spec = graph.nodes[node]
            config = spec.config.model_copy(update=dict(settings))
            problems: list[Problem] = []
            facts, _ = describe_all(
                graph, checked.program, problems, {node: config}, only=node, known=checked.facts
            )
            yield from problems
            if node in facts and not problems:
                for port, schema in facts[node].outs.items():
                    usual = checked.facts[node].outs.get(port)
                    if schema is None or usual is None:
                        continue
                    lost = [f"{c} ({usual[c]})" for c in usual if schema.get(c) != usual[c]]
                    if lost and port in warm.part.active_outputs(node):
                        yield Problem(
                            str(warm.phase.mark),
                            f"warmup: with {', '.join(settings)} set, {node}.{port} does not give the column {lost[0]}",
                            "use a setting that gives the same columns",
                        )


# amounts


def _first_rows(checked: Checked) -> Iterator[Problem]:
    """Enough rows must have come in before the first output is wanted."""
    graph, program = checked.graph, checked.program
    for name, facts in checked.facts.items():
        for port, (needed, param) in facts.needs_rows.items():
            edge = graph.edge_into(name, port)
            if edge is None or name not in program.round.firings:
                continue
            per_token = _rows_of_token(checked, edge)
            if per_token is None:
                continue
            rows = 0
            for warm in program.warmup:
                if name in warm.part.firings and not warm.part.active_outputs(name):
                    rows += (
                        warm.rounds
                        * warm.part.firings[name]
                        * warm.part.rates.get(edge.to, 1)
                        * per_token
                    )
            rows += program.round.rates.get(edge.to, 1) * per_token
            if program.round.active_outputs(name) and rows < needed:
                yield _too_short(checked, name, edge, rows, needed, param)


def _rows_of_token(checked: Checked, edge: Edge) -> int | None:
    rows = [
        checked.facts[s.node].rows.get(s.port) if s.node in checked.facts else None
        for s in edge.sources
    ]
    if any(r is None for r in rows):
        return _rows_before(checked, edge)
    fan_in = 1 if checked.graph.nodes[edge.to.node].replicas > 1 else 0
    return sum(
        r * (1 if fan_in else checked.graph.nodes[s.node].replicas)
        for r, s in zip(rows, edge.sources, strict=True)
        if r
    )


def _rows_before(checked: Checked, edge: Edge) -> int | None:
    """A node that says nothing of its rows (a reward model, a function) passes on those of its first input."""
    if len(edge.sources) > 1:
        return None
    name = edge.source.node
    spec = checked.graph.nodes[name]
    first = next((p for p, kind in spec.cls.ports.items() if isinstance(kind, In)), None)
    before = checked.graph.edge_into(name, first) if first else None
    return _rows_of_token(checked, before) if before else None


def _too_short(
    checked: Checked, name: str, edge: Edge, rows: int, needed: int, param: str
) -> Problem:
    spec = checked.graph.nodes[name]
    phases = [w.phase for w in checked.program.warmup if name in w.part.firings]
    mark = phases[0].mark if phases else spec.mark(param)
    source = edge.source.node
    return Problem(
        str(mark),
        f"nodes.{name}: the first batch needs {needed} rows ({param}), and {rows} have come in by then",
        f"warm up longer: 'warmup: [{{edges: [{source} -> {name}], steps: {needed}}}]', or lower {param}",
    )


def _memory(checked: Checked) -> Iterator[Problem]:
    """What all nodes would allocate, against what this machine has."""
    wants = {
        n: f.memory_bytes * checked.graph.nodes[n].replicas
        for n, f in checked.facts.items()
        if f.memory_bytes
    }
    have = machine_memory_bytes()
    total = sum(wants.values())
    if have is None or total <= have:
        return
    name = max(wants, key=lambda n: wants[n])
    spec = checked.graph.nodes[name]
    key = next((k for k in ("size", "capacity") if k in spec.written.fields), "")
    others = f" of {size_text(total)} in all" if len(wants) > 1 else ""
    yield Problem(
        str(spec.mark(key)),
        f"nodes.{name} would take {size_text(wants[name])}{others}; this machine has {size_text(have)}",
        "make it smaller, or store smaller columns",
    )


def machine_memory_bytes() -> int | None:
    """The memory that this process may use: the machine's, or its control group's where that is less."""
    found = []
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal:"):
            found.append(int(line.split()[1]) * 1024)
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        found += [int(line) for line in _lines(path) if line.strip().isdigit()]
    return min(found, default=None)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def size_text(size: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError


# time


def _staleness(graph: Graph) -> Iterator[Problem]:
    for edge in graph.edges:
        if edge.max_staleness is None:
            continue
        worst = (
            edge
            if edge.kind == "state"
            else max(_state_upstream(graph, edge), key=lambda e: e.lag, default=None)
        )
        if worst is not None and not worst.latest and worst.lag > edge.max_staleness:
            yield Problem(
                str(edge.mark),
                f"{edge}: max_staleness is {edge.max_staleness} rounds, and {worst} has lag {worst.lag}",
                f"lower the lag to {edge.max_staleness}, or allow {worst.lag}",
            )


def _state_upstream(graph: Graph, edge: Edge) -> list[Edge]:
    """The state edges that what flows on a stream depends on."""
    into: dict[str, list[Edge]] = {}
    for e in graph.edges:
        into.setdefault(e.to.node, []).append(e)
    seen: set[str] = set()
    todo = [s.node for s in edge.sources]
    found = []
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for e in into.get(name, ()):
            if e.kind == "state" and e.every is None:
                found.append(e)
            elif e.kind == "stream":
                todo += [s.node for s in e.sources]
    return found


def _on_policy(checked: Checked) -> Iterator[Problem]:
    """An on-policy learner that would see data of older weights."""
    graph = checked.graph
    for name, facts in checked.facts.items():
        if not facts.on_policy:
            continue
        for edge in graph.into(name):
            for state in _state_upstream(graph, edge) if edge.kind == "stream" else ():
                if state.source.node == name and (state.lag or state.latest):
                    how = f"lag {state.lag}" if state.lag else "latest"
                    yield Problem(
                        str(state.mark),
                        f"{name} learns on-policy, and {state} is stale ({how})",
                        "leave the lag out, or use an algorithm that corrects for it",
                        warning=True,
                    )


def _failures(graph: Graph) -> Iterator[Problem]:
    """A failed firing can be passed over only where nobody waits for what it gives."""
    taken = {s for e in graph.edges if e.kind == "stream" for s in e.sources}
    for name, spec in graph.nodes.items():
        outs = [
            p for p, k in spec.cls.ports.items() if isinstance(k, Out) and PortRef(name, p) in taken
        ]
        if spec.on_failure == "ignore" and outs:
            yield Problem(
                str(spec.mark()),
                f"nodes.{name}: on_failure is ignore, and others wait for its output '{outs[0]}'",
                "use restart",
            )


def _reasons(checked: Checked) -> Iterator[str]:
    """Why two runs of this graph may differ."""
    graph = checked.graph
    for edge in graph.edges:
        if edge.latest:
            yield f"{edge}: latest (the version depends on speed)"
        if edge.merge == "any" and (
            len(edge.sources) > 1 or graph.nodes[edge.source.node].replicas > 1
        ):
            yield f"{edge}: merge any (the order depends on speed)"
        if edge.when_full == "drop_oldest":
            yield f"{edge}: drop_oldest (what is dropped depends on speed)"
    for name, spec in graph.nodes.items():
        if spec.on_failure != "stop":
            yield f"{name}: on_failure {spec.on_failure}"
        if name in checked.facts and checked.facts[name].nondeterministic:
            yield f"{name}: {checked.facts[name].nondeterministic}"
