"""Hypothesis strategies for sound graphs of small nodes, their limits and their placements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from flowrl.checks.check import check
from flowrl.graph.loading import load_data
from tests.toys.toy_runs import toy_graph

OWN, LINKED = "tests.sites.site_nodes", "tests.runtime.service_nodes"
MOST_FIRINGS = 60  # in a round

Draw = Any


@dataclass
class GraphBuilder:
    """Adds random nodes and edges to a graph."""

    draw: Draw
    nodes: dict[str, Any] = field(default_factory=dict)
    edges: list[Any] = field(default_factory=list)
    replicas: dict[str, int] = field(default_factory=dict)

    def node(self, kind: str, replicas: int = 1, **params: Any) -> str:
        """Add a node with a random name, so that ties in the order are random."""
        name = f"{self.draw(st.sampled_from('abcdefgh'))}{len(self.nodes)}"
        self.nodes[name] = {"type": kind, "replicas": replicas, **params}
        self.replicas[name] = replicas
        return name

    def follow(self, source: str, kind: str, **params: Any) -> str:
        """Add a consumer of a node, with a random number of replicas."""
        count = self.replicas[source.partition(".")[0]]
        choices = [1, count] if count > 1 else [1, 1, 1, 2, 3]
        name = self.node(kind, self.draw(st.sampled_from(choices)), **params)
        self.join(source, name)
        return name

    def join(self, source: str, to: str) -> None:
        """Add a stream, perhaps with a capacity."""
        capacity = self.draw(st.sampled_from([None] * 5 + [2, 6, 20]))
        edge = f"{source} -> {to}"
        self.edges.append({edge: {"capacity": capacity}} if capacity else edge)

    def service(self, replicas: int) -> str:
        """Add a service, which may call another service."""
        kind = self.draw(st.sampled_from(["RandomService", "RandomService", "ForwardingService"]))
        if kind == "ForwardingService":
            forwarder = self.node(f"{LINKED}:ForwardingService", replicas)
            self.link(forwarder, self.service(replicas))
            return forwarder
        logs = self.draw(st.booleans())
        return self.node(f"{LINKED}:RandomService", replicas, logs_in_setup=logs)

    def link(self, client: str, *names: str) -> None:
        """Link a client to its services."""
        services = ", ".join(f"{name}.random" for name in names)
        self.edges.append(f"{services} <-> {client}.service")

    def has_consumer(self, source: str) -> bool:
        """Return whether a stream leaves a node."""
        streams = [edge for edge in self.edges if "<->" not in str(edge)]
        return any(source in ends_of(edge)[0] for edge in streams)


def ends_of(edge: Any) -> tuple[list[str], str]:
    """Return the sources of an edge, and its input."""
    text = edge if isinstance(edge, str) else next(iter(edge))
    *sources, to = text.replace("<->", "->").split(" -> ")
    return [name for source in sources for name in source.split(", ")], to


@st.composite
def random_graphs(draw: Draw) -> dict[str, Any]:
    """Return a graph that `check` usually finds sound."""
    builder = GraphBuilder(draw)
    collectors = [_collector(builder) for _ in range(draw(st.integers(1, 2)))]
    streams = list(collectors)
    for _ in range(draw(st.integers(0, 4))):
        streams.append(_middle(builder, draw(st.sampled_from(streams)), streams))
    learners = [_learner(builder, draw(st.sampled_from(streams))) for _ in range(draw(_few))]
    for name in streams:
        if not builder.has_consumer(name):
            builder.follow(name, draw(st.sampled_from(["Drain", "RandomLogger"])))
    for learner in learners:
        _readers(builder, learner, collectors, streams)
    graph = toy_graph(
        builder.nodes, builder.edges, warmup=_warmup(builder, collectors, streams + learners)
    )
    graph["seed"] = draw(st.integers(0, 3))
    if not check(load_data(graph)).ok:  # for example, a phase leaves an input out
        graph["warmup"] = []
    if not check(load_data(graph)).ok:  # for example, a capacity is too small
        graph["edges"] = [without_capacity(edge) for edge in graph["edges"]]
    return graph


def without_capacity(edge: Any) -> Any:
    """Return an edge without its capacity."""
    if isinstance(edge, dict):
        [(ends, options)] = edge.items()
        return ends if "capacity" in options else edge
    return edge


_few = st.sampled_from([0, 1, 1, 1, 1, 2])


def _collector(builder: GraphBuilder) -> str:
    draw = builder.draw
    replicas = draw(st.sampled_from([1, 1, 2, 3]))
    kinds = [
        "Source",
        "Source",
        "Source",
        "varying",
        "linked",
        "DrawingCollector",
        "ManyServicesCollector",
    ]
    kind = draw(st.sampled_from(kinds))
    if kind == "varying":
        return builder.node(f"{OWN}:VaryingSteps", replicas)
    if kind == "linked":
        service, caller = (
            builder.node("CountingService", replicas),
            builder.node("ServiceCaller", replicas),
        )
        builder.edges.append(f"{service} <-> {caller}")
        return caller
    if kind in ("DrawingCollector", "ManyServicesCollector"):
        services = [
            builder.service(replicas)
            for _ in range(1 if kind == "DrawingCollector" else draw(st.integers(1, 3)))
        ]
        verdict_at = draw(st.sampled_from([0, 0, 0, 20]))  # a draw of a random service
        verdicts = (
            kind == "DrawingCollector"
            and builder.nodes[services[0]]["type"] == f"{LINKED}:RandomService"
        )
        params = {"times": draw(st.integers(1, 3)), "verdict_at": verdict_at if verdicts else 0}
        name = builder.node(f"{LINKED}:{kind}", replicas, **params)
        builder.link(name, *services)
        return name
    give, steps = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    return builder.node("Source", replicas, give=give, steps=steps)


def _middle(builder: GraphBuilder, source: str, streams: list[str]) -> str:
    draw = builder.draw
    count = builder.replicas[source.partition(".")[0]]
    alike = [s for s in streams if builder.replicas[s.partition(".")[0]] == count and s != source]
    if alike and draw(st.integers(0, 3)) == 0:
        # Their rates may not balance. Then the graph is discarded.
        other = draw(st.sampled_from(alike))
        name = builder.node(draw(st.sampled_from(["Join", "Relay"])), count)
        if builder.nodes[name]["type"] == "Join":
            builder.join(source, f"{name}.left")
            builder.join(other, f"{name}.right")
        else:
            builder.join(f"{source}, {other}", name)
        return name
    if draw(st.integers(0, 5)) == 0:
        name = builder.follow(source, "Split")
        streams.append(f"{name}.left")
        return f"{name}.right"
    kind = draw(
        st.sampled_from(["Relay", "RateChanger", "VerdictGiver", "FailsPeriodically", "Buffer"])
    )
    if kind == "RateChanger":
        return builder.follow(
            source, kind, take=draw(st.integers(1, 3)), give=draw(st.integers(1, 3))
        )
    if kind == "VerdictGiver":
        return builder.follow(source, f"{OWN}:VerdictGiver", firing=draw(st.integers(0, 60)))
    if kind == "FailsPeriodically":
        how = draw(st.sampled_from(["restart", "ignore"]))
        name = builder.follow(source, f"{OWN}:FailsPeriodically", on_failure=how)
        return source if how == "ignore" else name  # an ignored firing gives no tokens
    if kind == "Buffer":
        return builder.follow(source, kind, updates=draw(st.integers(1, 3)))
    return builder.follow(source, kind)


def _learner(builder: GraphBuilder, source: str) -> str:
    draw = builder.draw
    params: dict[str, Any] = {}
    if draw(st.integers(0, 5)) == 0:
        params["stops_at"] = draw(st.integers(1, 30))
    kind, replicas = draw(st.sampled_from([("Learner", 1)] * 2 + [("GroupLearner", 2)]))
    name = builder.node(kind, replicas, **params)
    if kind == "GroupLearner":  # each of its replicas needs a row of each token
        count = builder.replicas[source.partition(".")[0]]
        wide = builder.node("Widener", draw(st.sampled_from([1, count])))
        builder.join(source, wide)
        source = wide
    if draw(st.booleans()):
        buffer = builder.node("Buffer", 1, updates=draw(st.integers(1, 3)))
        builder.edges += [
            f"{source} -> {buffer} -> {name}",
            f"{name}.priorities -> {buffer}.priorities",
        ]
    else:
        builder.join(source, name)
    return name


def _readers(
    builder: GraphBuilder, learner: str, collectors: list[str], streams: list[str]
) -> None:
    """Add readers of a learner's weights: collectors, followers, evaluators, and nodes that these pace."""
    draw = builder.draw
    for name in collectors:
        free = not any(f"{name}.weights" in str(e) for e in builder.edges)
        acts = builder.nodes[name]["type"] in ("Source", f"{OWN}:VaryingSteps")
        if acts and free and draw(st.booleans()):
            builder.edges.append(
                {f"{learner}.weights -> {name}.weights": {"lag": draw(st.integers(0, 2))}}
            )
    if draw(st.integers(0, 2)) == 0:
        follower = builder.follow(draw(st.sampled_from(streams)), "StateFollower")
        lag = {"lag": draw(st.integers(0, 3))}
        builder.edges.append({f"{learner}.weights -> {follower}.weights": lag})
    for _ in range(draw(st.integers(0, 2))):
        goal = draw(st.sampled_from([None, None, 3, 10, 40]))
        kind = draw(st.sampled_from(["Evaluator", "Evaluator", f"{LINKED}:DrawingEvaluator"]))
        evaluator = builder.node(kind, **({} if goal is None else {"goal": goal}))
        if kind != "Evaluator":
            builder.link(evaluator, builder.service(1))
        builder.edges.append(
            {f"{learner}.weights -> {evaluator}": {"every": draw(st.integers(1, 7))}}
        )
        behind = draw(st.sampled_from(["", "", "Drain", "TolerantLearner", "VerdictGiver"]))
        if behind == "VerdictGiver":
            builder.follow(evaluator, f"{OWN}:VerdictGiver", firing=draw(st.integers(0, 9)))
        elif behind == "TolerantLearner":
            builder.join(evaluator, builder.node(f"{OWN}:TolerantLearner"))
        elif behind:
            builder.follow(evaluator, behind)
    if draw(st.integers(0, 3)) == 0:
        mirror, evaluator = builder.node("StateRelay"), builder.node("Evaluator")
        builder.edges.append({f"{learner}.weights -> {mirror}": {"every": draw(st.integers(1, 3))}})
        builder.edges.append({f"{mirror}.mine -> {evaluator}": {"every": draw(st.integers(1, 3))}})


def _warmup(builder: GraphBuilder, collectors: list[str], ends: list[str]) -> list[Any]:
    draw = builder.draw
    phases = []
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        start, end = draw(st.sampled_from(collectors)), draw(st.sampled_from(ends))
        start, end = start.partition(".")[0], end.partition(".")[0]
        length = (
            {"rounds": draw(st.integers(1, 4))}
            if draw(st.booleans())
            else {"steps": draw(st.integers(1, 30))}
        )
        phase: dict[str, Any] = {"edges": [f"{start} -> {end}"], **length}
        if builder.nodes[start]["type"] == "Source" and draw(st.booleans()):
            phase["set"] = {f"{start}.mode": "random"}
        phases.append(phase)
    return phases


def add_nondeterminism(draw: Draw, graph: dict[str, Any]) -> dict[str, Any]:
    """Return the graph with options that leave determinism at some of its edges."""
    streams = st.sampled_from(
        [{}, {}, {}, {"merge": "any"}, {"when_full": "drop_oldest"},
         {"when_full": "drop_oldest", "capacity": 6}]
    )  # fmt: skip
    edges: list[Any] = []
    for edge in graph["edges"]:
        if isinstance(edge, dict):
            [(ends, options)] = edge.items()
            if "capacity" in options:
                options = {**options, **draw(streams)}
            elif "lag" in options and draw(st.booleans()):
                options = {"latest": True}
            edges.append({ends: options})
        elif "<->" in edge or edge.count("->") > 1:
            edges.append(edge)
        else:
            options = draw(streams)
            if graph["nodes"].get(ends_of(edge)[1], {}).get("type", "").endswith(":Learner"):
                options = {**options, **draw(st.sampled_from([{}, {"max_staleness": 1}]))}
            edges.append({edge: options} if options else edge)
    return {**graph, "edges": edges}


limits = st.one_of(
    st.just({"rounds": 25}),  # a verdict may come first
    st.builds(lambda n: {"rounds": n}, st.integers(1, 12)),
    st.builds(lambda n: {"steps": n, "rounds": 30}, st.integers(1, 150)),
    st.builds(lambda n: {"train_iters": n, "rounds": 20}, st.integers(1, 60)),
    st.builds(
        lambda n, m: {"train_iters": n, "steps": m, "rounds": 20},
        st.integers(1, 40),
        st.integers(1, 99),
    ),
)
thread_places = st.sampled_from(["main", "thread", "thread", "thread:x", "thread:y"])
all_places = st.sampled_from(["main", "thread", "thread:x", "process", "process:p", "process:q"])


@st.composite
def placements(draw: Draw, graph: dict[str, Any], places: Any = thread_places) -> str:
    """Return a placement. A service is placed with its clients, or apart from them."""
    if draw(st.integers(0, 3)) == 0:
        return (
            "threads"
            if places is thread_places
            else draw(st.sampled_from(["threads", "processes"]))
        )
    links = [edge for edge in graph["edges"] if "<->" in str(edge)]
    services = {end.partition(".")[0] for edge in links for end in ends_of(edge)[0]}
    together = {service for service in sorted(services) if draw(st.integers(0, 2))}
    return ",".join(f"{name}={draw(places)}" for name in graph["nodes"] if name not in together)
