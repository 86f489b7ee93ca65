"""Orders, cycles and reachability, compared with their definitions on random graphs."""

from hypothesis import given
from hypothesis import strategies as st

from flowrl.checks.dependency_graph import DependencyGraph

NAMES = "abcdef"
arrow_lists = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=12)


def paths(arrows: list[tuple[str, str]]) -> set[tuple[str, str]]:
    """The pairs of names that one or more arrows lead between."""
    found = set(arrows)
    while more := {(a, d) for a, b in found for c, d in arrows if b == c} - found:
        found |= more
    return found


@given(arrow_lists)
def test_the_order_has_all_names_that_no_cycle_leads_to_and_producers_first(arrows):
    order = DependencyGraph(NAMES, arrows).topological_order(str)
    on_cycle = {a for a, b in paths(arrows) if a == b}
    stuck = on_cycle | {b for a, b in paths(arrows) if a in on_cycle}
    assert sorted(order) == sorted(set(NAMES) - stuck)
    assert all(order.index(a) < order.index(b) for a, b in arrows if b in order)


def test_of_names_that_may_come_next_the_lowest_rank_does():
    graph = DependencyGraph("cabd", [("c", "d")])
    assert graph.topological_order(str) == ["a", "b", "c", "d"]
    assert graph.topological_order("dcba".index) == ["c", "d", "b", "a"]


@given(arrow_lists)
def test_a_cycle_is_found_where_there_is_one_and_follows_the_arrows(arrows):
    cycle = DependencyGraph(NAMES, arrows).find_cycle()
    assert bool(cycle) == any(a == b for a, b in paths(arrows))
    assert set(zip(cycle, [*cycle[1:], *cycle[:1]], strict=True)) <= set(arrows)


@given(arrow_lists, st.sets(st.sampled_from(NAMES)))
def test_reachable_names_are_those_that_paths_lead_to(arrows, starts):
    graph = DependencyGraph(NAMES, arrows)
    assert graph.downstream(starts) == starts | {b for a, b in paths(arrows) if a in starts}
    assert graph.upstream(starts) == starts | {a for a, b in paths(arrows) if b in starts}


@given(arrow_lists)
def test_components_are_joined_by_arrows_in_either_direction(arrows):
    either = paths([*arrows, *((b, a) for a, b in arrows)])
    components = DependencyGraph(NAMES, arrows).components()
    assert sorted("".join(sorted(c)) for c in components) == sorted(
        {"".join(sorted({a} | {b for c, b in either if c == a})) for a in NAMES}
    )
