"""Two looks at a run as a table: shares, rates, depths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowrl.runs.run_status import Look

WIDTH = 80
UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def rates(before: Look, after: Look) -> Look:
    """The second look, with shares and rates since the first."""
    s = max(after["wall_s"] - before["wall_s"], 1e-9)
    passed = _passed(before, after)
    nodes = {node["node"]: node for node in before["nodes"]}
    edges = {edge["edge"]: edge for edge in before["edges"]}
    steps = after["env_steps"] - before["env_steps"]
    return {
        **after,
        "over_s": round(s, 3),
        "env_steps_per_s": round(steps / s, 1),
        "nodes": [_node(nodes.get(n["node"]), n, passed[n["site"]]) for n in after["nodes"]],
        "edges": [_edge(edges.get(e["edge"]), e, passed[e["to_site"]]) for e in after["edges"]],
    }


def _passed(before: Look, after: Look) -> dict[str, float]:
    """Seconds between what is known of each site: a glance at it may be older than the look."""
    then, now = (
        {s["site"]: look["wall_s"] - s["silent_s"] for s in look["sites"]}
        for look in (before, after)
    )
    return {site: max(s - then.get(site, 0.0), 1e-3) for site, s in now.items()}


def _node(before: Mapping[str, Any] | None, after: Mapping[str, Any], s: float) -> dict[str, Any]:
    old: Mapping[str, Any] = before or {
        "fired": 0, "firing_s": 0.0, "waiting_s": {}, "blocked_s": {}, "idle_s": 0.0
    }  # fmt: skip
    shares = {
        key: _share((_sum(after[f"{key}_s"]) - _sum(old[f"{key}_s"])) / s)
        for key in ("firing", "waiting", "blocked", "idle")
    }
    return {**after, **shares, "firings_per_s": round((after["fired"] - old["fired"]) / s, 2)}


def _sum(seconds: Any) -> float:
    return sum(seconds.values()) if isinstance(seconds, Mapping) else float(seconds)


def _share(value: float) -> float:
    return round(min(max(value, 0.0), 1.0), 4)


def _edge(before: Mapping[str, Any] | None, after: Mapping[str, Any], s: float) -> dict[str, Any]:
    old = before or {}

    def rate(key: str) -> float | None:
        now = after[key]
        return None if now is None else round(max(now - (old.get(key) or 0), 0) / s, 2)

    tokens = rate("taken")
    held = after["held"]
    age_s = held / tokens if held is not None and tokens else None  # Little's law
    return {
        **after,
        "tokens_per_s": tokens,
        "bytes_per_s": rate("bytes"),
        "age_s": None if age_s is None else round(age_s, 4),
    }


def top_text(look: Look, width: int = WIDTH) -> str:
    """The table, no wider than the terminal."""
    lines = [
        f"{look['graph']}  {look['placement']}  {look['status']}  pid {look['pid']}",
        f"{clock(look['wall_s'])}  {look['env_steps']:,} env steps  "
        f"{short(look['env_steps_per_s'])}/s  {look['train_iters']:,} train iters"
        + ("" if look["eval_return"] is None else f"  return {look['eval_return']:.4g}"),
        "",
        *_table(_node_rows(look), "lrrrrrl", width),
        "",
        *_table(_edge_rows(look), "lrrrrr", width),
    ]
    return "\n".join(line[:width].rstrip() for line in lines)


def _node_rows(look: Look) -> list[list[str]]:
    head = ["node", "firing", "waiting", "blocked", "idle", "firings/s", "site"]
    nodes = [
        [n["node"], *(_percent(n[key]) for key in ("firing", "waiting", "blocked", "idle")),
         short(n["firings_per_s"]), n["site"]]
        for n in look["nodes"]
    ]  # fmt: skip
    return [head, *nodes]


def _edge_rows(look: Look) -> list[list[str]]:
    head = ["edge", "held", "tokens/s", "bytes/s", "age", "behind"]
    edges = [
        [
            e["edge"],
            _held(e),
            short(e["tokens_per_s"]),
            short(e["bytes_per_s"]),
            "" if e["age_s"] is None else _seconds(e["age_s"]),
            "" if e["iters_behind"] is None else f"{short(e['iters_behind'])} it",
        ]
        for e in look["edges"]
        if e["kind"] != "link"
    ]
    return [head, *edges]


def _held(edge: Mapping[str, Any]) -> str:
    if edge["held"] is None:
        return ""
    return f"{edge['held']}/{edge['bound']}" if edge["bound"] else str(edge["held"])


def _table(rows: list[list[str]], sides: str, width: int) -> list[str]:
    """Columns, the first one cut in its middle where the terminal is narrow."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(sides))]
    widths[0] = max(min(widths[0], width - sum(widths[1:]) - 2 * (len(sides) - 1)), 12)
    return ["  ".join(_cell(*c) for c in zip(row, widths, sides, strict=True)) for row in rows]


def _cell(text: str, width: int, side: str) -> str:
    if len(text) > width:
        keep = width - 1
        text = f"{text[: keep // 2]}…{text[len(text) - (keep - keep // 2) :]}"
    return text.ljust(width) if side == "l" else text.rjust(width)


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else "-"


def _seconds(s: float) -> str:
    return f"{s * 1000:.1f} ms" if s < 1 else f"{s:.1f} s"


def short(value: float | None) -> str:
    """A number in few letters."""
    if value is None:
        return ""
    for size, unit in UNITS:
        if value >= 10 * size:
            return f"{value / size:.0f}{unit}"
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def clock(seconds: float) -> str:
    """Seconds as a clock shows them."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def ps_text(looks: list[Look]) -> str:
    """A line for each run."""
    head = ["graph", "pid", "status", "elapsed", "env steps", "rate", "placement", "run folder"]
    rows = [
        [r["graph"], str(r["pid"]), r["status"], clock(r["wall_s"]), f"{r['env_steps']:,}",
         f"{short(r['env_steps_per_s'])}/s", r["placement"], r["run_dir"]]
        for r in looks
    ]  # fmt: skip
    return "\n".join(line.rstrip() for line in _table([head, *rows], "lrlrrrll", 1 << 20))
