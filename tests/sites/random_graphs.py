"""Random sound graphs of small nodes, with limits and placements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from flowrl.checks.check import check
from flowrl.graph.loading import load_data
from tests.toys.running import tree

OWN, LINKED = "tests.sites.site_nodes", "tests.runtime.link_nodes"
MOST_FIRINGS = 60  # in a round

Draw = Any


@dataclass
class Sketch:
    """A graph that grows."""

    draw: Draw
    nodes: dict[str, Any] = field(default_factory=dict)
    edges: list[Any] = field(default_factory=list)
    replicas: dict[str, int] = field(default_factory=dict)

    def node(self, kind: str, replicas: int = 1, **params: Any) -> str:
        """Add a node; its name says nothing of its place in the order."""
        name = f"{self.draw(st.sampled_from('abcdefgh'))}{len(self.nodes)}"
        self.nodes[name] = {"type": kind, "replicas": replicas, **params}
        self.replicas[name] = replicas
        return name

    def follow(self, source: str, kind: str, **params: Any) -> str:
        """Add a node behind another one: dealt to, paired with or fanned in."""
        count = self.replicas[source.partition(".")[0]]
        choices = [1, count] if count > 1 else [1, 1, 1, 2, 3]
        name = self.node(kind, self.draw(st.sampled_from(choices)), **params)
        self.join(source, name)
        return name

    def join(self, source: str, to: str) -> None:
        """Add a stream, which may say how much it holds."""
        capacity = self.draw(st.sampled_from([None] * 5 + [2, 6, 20]))
        edge = f"{source} -> {to}"
        self.edges.append({edge: {"capacity": capacity}} if capacity else edge)

    def well(self, replicas: int) -> str:
        """Add a service, which may call another one."""
        kind = self.draw(st.sampled_from(["DeepWell", "DeepWell", "Pump"]))
        if kind == "Pump":
            pump = self.node(f"{LINKED}:Pump", replicas)
            self.calls(pump, self.well(replicas))
            return pump
        early = self.draw(st.booleans())
        return self.node(f"{LINKED}:DeepWell", replicas, tells_early=early)

    def calls(self, client: str, *wells: str) -> None:
        """Link a client to its services; a pump is both."""
        services = ", ".join(f"{well}.water" for well in wells)
        self.edges.append(f"{services} <-> {client}.well")

    def feeds(self, source: str) -> bool:
        """Whether somebody takes what a node gives."""
        streams = [edge for edge in self.edges if "<->" not in str(edge)]
        return any(source in ends_of(edge)[0] for edge in streams)


def ends_of(edge: Any) -> tuple[list[str], str]:
    """The sources of an edge, and where it ends."""
    text = edge if isinstance(edge, str) else next(iter(edge))
    *sources, to = text.replace("<->", "->").split(" -> ")
    return [name for source in sources for name in source.split(", ")], to


@st.composite
def random_graphs(draw: Draw) -> dict[str, Any]:
    """A graph that `check` finds sound."""
    sketch = Sketch(draw)
    collectors = [_collector(sketch) for _ in range(draw(st.integers(1, 2)))]
    streams = list(collectors)
    for _ in range(draw(st.integers(0, 4))):
        streams.append(_middle(sketch, draw(st.sampled_from(streams)), streams))
    learners = [_learner(sketch, draw(st.sampled_from(streams))) for _ in range(draw(_few))]
    for name in streams:
        if not sketch.feeds(name):
            sketch.follow(name, draw(st.sampled_from(["Drain", "Dice"])))
    for learner in learners:
        _readers(sketch, learner, collectors, streams)
    graph = tree(sketch.nodes, sketch.edges, warmup=_warmup(sketch, collectors, streams + learners))
    graph["seed"] = draw(st.integers(0, 3))
    if not check(load_data(graph)).ok:  # such as a phase that leaves an input out
        graph["warmup"] = []
    if not check(load_data(graph)).ok:  # such as an edge that does not hold what a round gives
        graph["edges"] = [without_capacity(edge) for edge in graph["edges"]]
    return graph


def without_capacity(edge: Any) -> Any:
    """The same edge, which holds what it must."""
    return (
        next(iter(edge))
        if isinstance(edge, dict) and "capacity" in edge[next(iter(edge))]
        else edge
    )


_few = st.sampled_from([0, 1, 1, 1, 1, 2])


def _collector(sketch: Sketch) -> str:
    draw = sketch.draw
    replicas = draw(st.sampled_from([1, 1, 2, 3]))
    kinds = ["Source", "Source", "Source", "varying", "linked", "Farmer", "Village"]
    kind = draw(st.sampled_from(kinds))
    if kind == "varying":
        return sketch.node(f"{OWN}:Varying", replicas)
    if kind == "linked":
        well, bucket = sketch.node("Well", replicas), sketch.node("Bucket", replicas)
        sketch.edges.append(f"{well} <-> {bucket}")
        return bucket
    if kind in ("Farmer", "Village"):
        wells = [
            sketch.well(replicas) for _ in range(1 if kind == "Farmer" else draw(st.integers(1, 3)))
        ]
        stops_at = draw(st.sampled_from([0, 0, 0, 20]))  # a draw, if they are wells and no pumps
        verdicts = kind == "Farmer" and sketch.nodes[wells[0]]["type"] == f"{LINKED}:DeepWell"
        params = {"times": draw(st.integers(1, 3)), "stops_at": stops_at if verdicts else 0}
        name = sketch.node(f"{LINKED}:{kind}", replicas, **params)
        sketch.calls(name, *wells)
        return name
    give, steps = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    return sketch.node("Source", replicas, give=give, steps=steps)


def _middle(sketch: Sketch, source: str, streams: list[str]) -> str:
    draw = sketch.draw
    count = sketch.replicas[source.partition(".")[0]]
    alike = [s for s in streams if sketch.replicas[s.partition(".")[0]] == count and s != source]
    if alike and draw(st.integers(0, 3)) == 0:
        # they may give different amounts: then it is no graph
        other = draw(st.sampled_from(alike))
        name = sketch.node(draw(st.sampled_from(["Join", "Relay"])), count)
        if sketch.nodes[name]["type"] == "Join":
            sketch.join(source, f"{name}.left")
            sketch.join(other, f"{name}.right")
        else:
            sketch.join(f"{source}, {other}", name)
        return name
    if draw(st.integers(0, 5)) == 0:
        name = sketch.follow(source, "Split")
        streams.append(f"{name}.left")
        return f"{name}.right"
    kind = draw(st.sampled_from(["Relay", "Gear", "Critic", "Shaky", "Buffer"]))
    if kind == "Gear":
        return sketch.follow(
            source, kind, take=draw(st.integers(1, 3)), give=draw(st.integers(1, 3))
        )
    if kind == "Critic":
        return sketch.follow(source, f"{OWN}:Critic", firing=draw(st.integers(0, 60)))
    if kind == "Shaky":
        how = draw(st.sampled_from(["restart", "ignore"]))
        name = sketch.follow(source, f"{OWN}:Shaky", on_failure=how)
        return source if how == "ignore" else name  # nobody may wait for what may not come
    if kind == "Buffer":
        return sketch.follow(source, kind, updates=draw(st.integers(1, 3)))
    return sketch.follow(source, kind)


def _learner(sketch: Sketch, source: str) -> str:
    draw = sketch.draw
    params: dict[str, Any] = {}
    if draw(st.integers(0, 5)) == 0:
        params["stops_at"] = draw(st.integers(1, 30))
    name = sketch.node("Learner", 1, **params)
    if draw(st.booleans()):
        buffer = sketch.node("Buffer", 1, updates=draw(st.integers(1, 3)))
        sketch.edges += [
            f"{source} -> {buffer} -> {name}",
            f"{name}.priorities -> {buffer}.priorities",
        ]
    else:
        sketch.join(source, name)
    return name


def _readers(sketch: Sketch, learner: str, collectors: list[str], streams: list[str]) -> None:
    """Who sees a learner's weights: collectors, followers, judges, and whom they pace."""
    draw = sketch.draw
    for name in collectors:
        free = not any(f"{name}.weights" in str(e) for e in sketch.edges)
        acts = sketch.nodes[name]["type"] in ("Source", f"{OWN}:Varying")
        if acts and free and draw(st.booleans()):
            sketch.edges.append(
                {f"{learner}.weights -> {name}.weights": {"lag": draw(st.integers(0, 2))}}
            )
    if draw(st.integers(0, 2)) == 0:
        follower = sketch.follow(draw(st.sampled_from(streams)), "Follower")
        lag = {"lag": draw(st.integers(0, 3))}
        sketch.edges.append({f"{learner}.weights -> {follower}.weights": lag})
    for _ in range(draw(st.integers(0, 2))):
        goal = draw(st.sampled_from([None, None, 3, 10, 40]))
        kind = draw(st.sampled_from(["Judge", "Judge", f"{LINKED}:Taster"]))
        judge = sketch.node(kind, **({} if goal is None else {"goal": goal}))
        if kind != "Judge":
            sketch.calls(judge, sketch.well(1))
        sketch.edges.append({f"{learner}.weights -> {judge}": {"every": draw(st.integers(1, 7))}})
        behind = draw(st.sampled_from(["", "", "Drain", "Student", "Critic"]))
        if behind == "Critic":
            sketch.follow(judge, f"{OWN}:Critic", firing=draw(st.integers(0, 9)))
        elif behind == "Student":
            sketch.join(judge, sketch.node(f"{OWN}:Student"))
        elif behind:
            sketch.follow(judge, behind)
    if draw(st.integers(0, 3)) == 0:
        mirror, judge = sketch.node("Mirror"), sketch.node("Judge")
        sketch.edges.append({f"{learner}.weights -> {mirror}": {"every": draw(st.integers(1, 3))}})
        sketch.edges.append({f"{mirror}.mine -> {judge}": {"every": draw(st.integers(1, 3))}})


def _warmup(sketch: Sketch, collectors: list[str], ends: list[str]) -> list[Any]:
    draw = sketch.draw
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
        if sketch.nodes[start]["type"] == "Source" and draw(st.booleans()):
            phase["set"] = {f"{start}.mode": "random"}
        phases.append(phase)
    return phases


def loosened(draw: Draw, graph: dict[str, Any]) -> dict[str, Any]:
    """The same graph, with edges that drop, that take what comes first, that bring the newest version."""
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
    st.just({"rounds": 25}),  # where a verdict may come before
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
    """A place for each node; a service lives with its clients, or apart."""
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
