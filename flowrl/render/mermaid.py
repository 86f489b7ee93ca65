"""A graph as Mermaid in Markdown, which GitHub and many editors show as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowrl.render.dot import COLOURS, FAINT, FILLS, INK
from flowrl.render.picture import Arrow, Box, Picture

ARROWS = {"stream": "-->", "state": "-.->", "link": "==="}


def mermaid_text(drawn: Picture, facts: str = "") -> str:
    """A Markdown page: the title, the picture, and `facts` below it."""
    about = f"{drawn.about}\n\n" if drawn.about else ""
    block = "\n".join(_block(drawn))
    warmup = "".join(f"- Warm-up, {line}.\n" for line in drawn.warmup)
    legend = "Solid: streams. Dashed: state. Thick, without an arrow: calls.\n"
    page = f"# {drawn.name}\n\n{about}```mermaid\n{block}\n```\n\n{legend}"
    page += f"\n{warmup}" if warmup else ""
    return page + (f"\n```text\n{facts}\n```\n" if facts else "")


def _block(drawn: Picture) -> Iterator[str]:
    ids = {name: f"n{number}" for number, name in enumerate(drawn.boxes)}
    yield "flowchart LR"
    yield from _nodes(drawn, ids)
    for arrow in drawn.arrows:
        source, to = ids[arrow.source.node], ids[arrow.to.node]
        yield f'  {source} {ARROWS[arrow.kind]}|"{_words(arrow)}"| {to}'
    for number, arrow in enumerate(drawn.arrows):
        yield f"  linkStyle {number} stroke:{COLOURS[arrow.kind]}"
    for look, fill in FILLS.items():
        yield f"  classDef is_{look} fill:{fill},stroke:{FAINT},color:{INK}"


def _nodes(drawn: Picture, ids: Mapping[str, str]) -> Iterator[str]:
    if not drawn.sites:
        yield from (f"  {_node(box, ids)}" for box in drawn.boxes.values())
        return
    for number, (site, names) in enumerate(drawn.sites.items()):
        yield f'  subgraph s{number} ["{_escaped(site)}"]'
        yield from (f"    {_node(drawn.boxes[name], ids)}" for name in names)
        yield "  end"


def _node(box: Box, ids: Mapping[str, str]) -> str:
    times = f" {box.times}" if box.times else ""
    label = f"<b>{_escaped(box.name)}</b>{times}<br/>{_escaped(box.type)}"
    return f'{ids[box.name]}["{label}"]:::is_{box.look}'


def _words(arrow: Arrow) -> str:
    return "<br/>".join(_escaped(w) for w in (arrow.type, arrow.facts, arrow.transport) if w)


def _escaped(text: str) -> str:
    """Mermaid's own entities: a quotation mark or a bracket in a label ends it otherwise."""
    return "".join(c if c.isalnum() or c in " _-.,:/×@" else f"#{ord(c)};" for c in text)
