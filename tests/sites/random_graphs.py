"""Random sound graphs of small nodes, with limits and placements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from flowrl.checks.check import check
from flowrl.source.loading import load_tree
from tests.engine.running import tree

OWN = "tests.sites.site_nodes"
MOST_FIRINGS = 60  # in a round

Draw = Any


@dataclass
class Sketch:
    """A graph that grows."""

    draw: Draw
    nodes: dict[str, Any] = field(default_factory=dict)
    edges: list[Any] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)  # outputs that nobody takes yet: nodes
    replicas: dict[str, int] = field(default_factory=dict)

    def node(self, kind: str, replicas: int = 1, **params: Any) -> str:
        """Add a node; its name says nothing of its place in the order."""
        name = f"{self.draw(st.sampled_from('abcdefgh'))}{len(self.nodes)}"
        self.nodes[name] = {"type": kind, "replicas": replicas, **params}
        self.replicas[name] = replicas
        return name

    def follow(self, source: str, kind: str, **params: Any) -> str:
        """Add a node behind another one: dealt to, paired with or fanned in."""
        count = self.replicas[source]
        choices = [1, count] if count > 1 else [1, 1, 1, 2, 3]
        name = self.node(kind, self.draw(st.sampled_from(choices)), **params)
        self.edges.append(f"{source} -> {name}")
        return name


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
        if not any(str(e).startswith(f"{name} ->") for e in sketch.edges):
            sketch.edges.append(
                f"{name} -> {sketch.node(draw(st.sampled_from(['Drain', 'Dice'])))}"
            )
    for learner in learners:
        _readers(sketch, learner, collectors, streams)
    graph = tree(sketch.nodes, sketch.edges, warmup=_warmup(sketch, collectors, streams + learners))
    graph["seed"] = draw(st.integers(0, 3))
    found = check(load_tree(graph))
    if not found.ok:  # such as a phase that leaves an input out
        graph["warmup"] = []
        found = check(load_tree(graph))
    return graph


_few = st.sampled_from([0, 1, 1, 1, 1, 2])


def _collector(sketch: Sketch) -> str:
    draw = sketch.draw
    replicas = draw(st.sampled_from([1, 1, 2, 3]))
    kind = draw(st.sampled_from(["Source", "Source", "Source", "varying", "linked"]))
    if kind == "varying":
        return sketch.node(f"{OWN}:Varying", replicas)
    if kind == "linked":
        well, bucket = sketch.node("Well", replicas), sketch.node("Bucket", replicas)
        sketch.edges.append(f"{bucket} <-> {well}")
        return bucket
    give, steps = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    return sketch.node("Source", replicas, give=give, steps=steps)


def _middle(sketch: Sketch, source: str, streams: list[str]) -> str:
    draw = sketch.draw
    alike = [s for s in streams if sketch.replicas[s] == sketch.replicas[source] and s != source]
    if (
        alike and draw(st.integers(0, 4)) == 0
    ):  # they may give different amounts: then it is no graph
        name = sketch.node("Join", sketch.replicas[source])
        sketch.edges += [
            f"{source} -> {name}.left",
            f"{draw(st.sampled_from(alike))} -> {name}.right",
        ]
        return name
    kind = draw(st.sampled_from(["Relay", "Gear", "Critic", "Shaky", "Buffer"]))
    if kind == "Gear":
        return sketch.follow(
            source, kind, take=draw(st.integers(1, 3)), give=draw(st.integers(1, 3))
        )
    if kind == "Critic":
        return sketch.follow(source, f"{OWN}:Critic", firing=draw(st.integers(0, 60)))
    if kind == "Shaky":
        how = draw(st.sampled_from(["restart", "ignore"]))
        kind = "Relay" if how == "ignore" else f"{OWN}:Shaky"
        return sketch.follow(source, kind, on_failure=how)
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
        sketch.edges.append(f"{source} -> {name}")
    return name


def _readers(sketch: Sketch, learner: str, collectors: list[str], streams: list[str]) -> None:
    """Who sees a learner's weights: collectors, followers, judges, and whom they pace."""
    draw = sketch.draw
    for name in collectors:
        free = not any(f"{name}.weights" in str(e) for e in sketch.edges)
        if sketch.nodes[name]["type"] != "Bucket" and free and draw(st.booleans()):
            sketch.edges.append(
                {f"{learner}.weights -> {name}.weights": {"lag": draw(st.integers(0, 2))}}
            )
    if draw(st.integers(0, 2)) == 0:
        follower = sketch.follow(draw(st.sampled_from(streams)), "Follower")
        lag = {"lag": draw(st.integers(0, 3))}
        sketch.edges.append({f"{learner}.weights -> {follower}.weights": lag})
    for _ in range(draw(st.integers(0, 2))):
        goal = draw(st.sampled_from([None, None, 3, 10, 40]))
        judge = sketch.node("Judge", **({} if goal is None else {"goal": goal}))
        sketch.edges.append({f"{learner}.weights -> {judge}": {"every": draw(st.integers(1, 7))}})
        behind = draw(st.sampled_from(["", "", "Drain", "Student", "Critic"]))
        if behind == "Critic":
            sketch.follow(judge, f"{OWN}:Critic", firing=draw(st.integers(0, 9)))
        elif behind:
            sketch.follow(judge, f"{OWN}:{behind}" if behind == "Student" else behind)
    if draw(st.integers(0, 3)) == 0:
        mirror, judge = sketch.node("Mirror"), sketch.node("Judge")
        sketch.edges.append({f"{learner}.weights -> {mirror}": {"every": draw(st.integers(1, 3))}})
        sketch.edges.append({f"{mirror}.mine -> {judge}": {"every": draw(st.integers(1, 3))}})


def _warmup(sketch: Sketch, collectors: list[str], ends: list[str]) -> list[Any]:
    draw = sketch.draw
    phases = []
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        start, end = draw(st.sampled_from(collectors)), draw(st.sampled_from(ends))
        phase: dict[str, Any] = {"edges": [f"{start} -> {end}"], "rounds": draw(st.integers(1, 4))}
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
            latest = "lag" in options and draw(st.booleans())
            edges.append({ends: {"latest": True}} if latest else edge)
        elif "<->" in edge or edge.count("->") > 1:
            edges.append(edge)
        else:
            options = draw(streams)
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
all_places = st.sampled_from(["main", "thread", "thread:x", "process:p", "process:p", "process:q"])


@st.composite
def placements(draw: Draw, graph: dict[str, Any], places: Any = thread_places) -> str:
    """A place for each node; a service lives with its clients, or apart."""
    if draw(st.integers(0, 3)) == 0:
        return "threads"
    links = [str(e).partition(" <-> ") for e in graph["edges"] if " <-> " in str(e)]
    together = {service for _, _, service in links if draw(st.integers(0, 2))}
    return ",".join(f"{name}={draw(places)}" for name in graph["nodes"] if name not in together)
