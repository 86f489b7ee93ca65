"""Who waits for whom in a run, on which edge, since when; and for whom all of them wait in the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LONG_S = 1.0  # shorter waits come and go
SILENT_S = (
    3.0  # a site in a process says something twice a second, unless its code lets nothing else run
)

Site = Mapping[str, Any]  # one of a look's sites

NOT_WAITING = ("firing", "serving", "starting")
COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class Reason:
    """What keeps a run from going on."""

    sites: list[Site]  # all of them, the longest waiting first
    ends: list[Site]  # for whom the others wait, and who wait for nobody
    cycle: list[Site]  # who wait for each other
    waits_for: Mapping[str, list[str]]  # by site: sites

    @property
    def longest_s(self) -> float:
        """How long the longest wait or firing goes on by now."""
        return max((s["for_s"] for s in self.sites if s["doing"] != "stopped"), default=0.0)


def reason_of(look: Mapping[str, Any]) -> Reason:
    """Follow every wait to its end."""
    by_name = {site["site"]: site for site in look["sites"]}
    waits_for = {name: _waits_for(site, look) for name, site in by_name.items()}
    waits_for = {name: [p for p in peers if p in by_name] for name, peers in waits_for.items()}
    ends = [site for name, site in by_name.items() if not _waits(site) and _stuck(site)]
    sites = sorted(by_name.values(), key=lambda s: -s["for_s"])
    return Reason(sites, ends, _cycle(by_name, waits_for), waits_for)


def _waits(site: Site) -> bool:
    return site["doing"] in ("waiting", "blocked", "idle")


def _stuck(site: Site) -> bool:
    """Whether it might be what the others wait for."""
    return bool(site["doing"] != "stopped" or site["silent_s"] > SILENT_S)


def _waits_for(site: Site, look: Mapping[str, Any]) -> list[str]:
    """The sites that alone can end a wait."""
    if site["doing"] == "idle":  # more is granted when the slowest has come as far
        rounds = {s["site"]: s["rounds"] for s in look["sites"] if s["doing"] != "stopped"}
        least = min(rounds.values(), default=0)
        return [n for n, r in rounds.items() if r == least and n != site["site"]]
    if not _waits(site):
        return []
    if site["peer"]:
        return [site["peer"]]
    who = site["who"].split(", ")  # several, where any of them may fire
    return sorted({e["from_site"] for e in look["edges"] if e["to"] in who} - {site["site"]})


def _cycle(by_name: Mapping[str, Site], waits_for: Mapping[str, list[str]]) -> list[Site]:
    """Sites that wait for each other, each for one alone, and long enough to be sure."""
    for start in by_name:
        path = [start]
        while len(peers := waits_for[path[-1]]) == 1:
            if peers[0] in path:
                cycle = [by_name[name] for name in path[path.index(peers[0]) :]]
                sure = all(s["for_s"] >= LONG_S and s["doing"] != "idle" for s in cycle)
                return cycle if sure else []
            path.append(peers[0])
    return []


def why_text(look: Mapping[str, Any]) -> str:
    """The same in words."""
    found = reason_of(look)
    lines = [f"{look['graph']} ({look['placement']}): {look['status']} for {_s(look['wall_s'])}"]
    lines += ["", *(f"  {_site_line(site, found)}" for site in found.sites), ""]
    return "\n".join([*lines, verdict(look)])


def verdict(look: Mapping[str, Any]) -> str:
    """What keeps the run, in a sentence."""
    found = reason_of(look)
    if found.cycle:
        ways = [f"{_who(s)} waits for {_who(t)} on {s['edge']}" for s, t in _pairs(found.cycle)]
        return f"deadlock: {', '.join(ways)}; none of them can go on"
    long = [s for s in found.ends if s["for_s"] >= LONG_S or s["silent_s"] > SILENT_S]
    if not long and found.longest_s < LONG_S:
        return f"nothing is stuck: no wait and no firing has lasted for {_s(LONG_S)}"
    if not long:
        return f"it goes on: {' and '.join(f'{_who(s)} {_has_been(s)}' for s in found.ends)}"
    waiting = [s for s in found.sites if _waits(s) and s["for_s"] >= LONG_S]
    doing = " and ".join(f"{_who(s)} {_has_been(s)}" for s in long)
    return f"all wait for {_for_whom(long)}: {doing}" if waiting else doing


def _for_whom(sites: list[Site]) -> str:
    return " and ".join(map(_who, sites))


def _pairs(cycle: list[Site]) -> list[tuple[Site, Site]]:
    return list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))


def _has_been(site: Site) -> str:
    """What a site that waits for nobody does."""
    if site["silent_s"] > SILENT_S:
        return (
            f"has let nothing be heard of it for {_s(site['silent_s'])} "
            f"(then it was {site['doing']}): its process is stopped, or its code holds Python's lock"
        )
    if site["doing"] == "starting":
        return "is still being made"
    if site["for_s"] < LONG_S:
        return "is at work"
    return f"has been {site['doing']} for {_s(site['for_s'])}"


def _site_line(site: Site, found: Reason) -> str:
    who, since = _who(site), _s(site["for_s"])
    peers = " and ".join(found.waits_for[site["site"]])
    where = f" [{site['site']}]"
    words = {
        "waiting": f"{who} has waited {since} for {site['edge']}, from {peers}{where}",
        "blocked": f"{who} has been blocked {since} on {site['edge']}, to {peers}{where}",
        "idle": f"{site['site']} has been idle {since}: it is ahead of {peers}",
        "stopped": f"{site['site']} has done its part",
    }
    return words.get(site["doing"], f"{who} {_has_been(site)}{where}")


def _who(site: Site) -> str:
    """The instance, or the site where none has a turn."""
    return str(site["who"] or site["site"])


def _s(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
