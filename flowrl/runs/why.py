"""Why a run makes no progress: which site waits for which others, on which edge and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flowrl.runtime.status import RunStatus, SiteStatus

LONG_S = 1.0  # shorter waits come and go
SILENT_S = 3.0  # a busy site in a process reports twice a second, unless it holds Python's lock


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """Which sites wait for which others."""

    sites: list[SiteStatus]  # all of them, the longest activity first
    ends: list[SiteStatus]  # those that wait for no other, and may be waited for
    cycle: list[SiteStatus]  # those that wait for each other
    waits_for: Mapping[str, list[str]]  # by site: sites

    @property
    def longest_s(self) -> float:
        """How long the longest wait or firing has lasted so far."""
        active = [s.activity for s in self.sites if s.activity.kind != "stopped"]
        return max((activity.for_s for activity in active), default=0.0)


def wait_graph(status: RunStatus) -> WaitGraph:
    """Follow every wait to its end."""
    by_name = {site.site: site for site in status.sites}
    waits_for = {name: _waits_for(site, status) for name, site in by_name.items()}
    waits_for = {name: [p for p in peers if p in by_name] for name, peers in waits_for.items()}
    ends = [site for site in by_name.values() if not _is_waiting(site) and _may_be_stuck(site)]
    sites = sorted(by_name.values(), key=lambda site: -site.activity.for_s)
    return WaitGraph(sites, ends, _cycle(by_name, waits_for), waits_for)


def _is_waiting(site: SiteStatus) -> bool:
    return site.activity.kind in ("waiting", "blocked", "idle")


def _may_be_stuck(site: SiteStatus) -> bool:
    """Whether the others may wait for this site."""
    return site.activity.kind != "stopped" or site.age_s > SILENT_S


def _waits_for(site: SiteStatus, status: RunStatus) -> list[str]:
    """The sites that alone can end a wait."""
    activity = site.activity
    if activity.kind == "idle":  # a lease is renewed when the slowest site has come as far
        rounds = {s.site: s.rounds for s in status.sites if s.activity.kind != "stopped"}
        least = min(rounds.values(), default=0)
        return [name for name, r in rounds.items() if r == least and name != site.site]
    if not _is_waiting(site):
        return []
    if activity.peer:
        return [activity.peer]
    instances = activity.instance.split(", ")  # several, where any of them may fire
    producers = {e.producer_site for e in status.edges if e.consumer in instances}
    return sorted(producers - {site.site})


def _cycle(
    by_name: Mapping[str, SiteStatus], waits_for: Mapping[str, list[str]]
) -> list[SiteStatus]:
    """Sites that wait for each other, each for one alone, and long enough to be sure."""
    for start in by_name:
        path = [start]
        while len(peers := waits_for[path[-1]]) == 1:
            if peers[0] in path:
                cycle = [by_name[name] for name in path[path.index(peers[0]) :]]
                activities = [site.activity for site in cycle]
                is_sure = all(a.for_s >= LONG_S and a.kind != "idle" for a in activities)
                return cycle if is_sure else []
            path.append(peers[0])
    return []


def why_text(status: RunStatus) -> str:
    """The activity of each site, and the verdict."""
    waits = wait_graph(status)
    lines = [f"{status.graph} ({status.placement}): {status.status} for {_s(status.wall_s)}"]
    lines += ["", *(f"  {_site_line(site, waits)}" for site in waits.sites), ""]
    return "\n".join([*lines, verdict(status)])


def verdict(status: RunStatus) -> str:
    """What holds the run up, in one sentence."""
    if status.waits_for:
        return status.waits_for
    waits = wait_graph(status)
    if waits.cycle:
        pairs = zip(waits.cycle, [*waits.cycle[1:], waits.cycle[0]], strict=True)
        parts = [f"{_name(a)} waits for {_name(b)} on {a.activity.edge}" for a, b in pairs]
        return f"deadlock: {', '.join(parts)}; none of them can continue"
    long = [s for s in waits.ends if s.activity.for_s >= LONG_S or s.age_s > SILENT_S]
    if not long and waits.longest_s < LONG_S:
        return f"nothing is stuck: no wait and no firing has lasted for {_s(LONG_S)}"
    if not long:
        return f"it goes on: {' and '.join(f'{_name(s)} {_has_been(s)}' for s in waits.ends)}"
    waiting = [s for s in waits.sites if _is_waiting(s) and s.activity.for_s >= LONG_S]
    doing = " and ".join(f"{_name(s)} {_has_been(s)}" for s in long)
    return f"all wait for {' and '.join(map(_name, long))}: {doing}" if waiting else doing


def _has_been(site: SiteStatus) -> str:
    """The activity of a site that waits for no other, as a verb phrase."""
    kind, for_s = site.activity.kind, site.activity.for_s
    if site.age_s > SILENT_S:
        return (
            f"has reported nothing for {_s(site.age_s)} "
            f"(then it was {kind}): its process is stopped, or its code holds Python's lock"
        )
    if kind == "starting":
        return "is still being made"
    if for_s < LONG_S:
        return "is at work"
    calling = f", in a call of {site.activity.service}" if site.activity.service else ""
    return f"has been {kind} for {_s(for_s)}{calling}"


def _site_line(site: SiteStatus, waits: WaitGraph) -> str:
    activity, name, since = site.activity, _name(site), _s(site.activity.for_s)
    peers = " and ".join(waits.waits_for[site.site])
    where = f" [{site.site}]"
    lines = {
        "waiting": f"{name} has waited {since} for {activity.edge}, from {peers}{where}",
        "blocked": f"{name} has been blocked {since} on {activity.edge}, to {peers}{where}",
        "idle": f"{site.site} has been idle {since}: it is ahead of {peers}",
        "stopped": f"{site.site} has done its part",
    }
    return lines.get(activity.kind, f"{name} {_has_been(site)}{where}")


def _name(site: SiteStatus) -> str:
    """The instance that fires or waits, or the site if there is none."""
    return site.activity.instance or site.site


def _s(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
