"""Pictures of a graph: DOT, SVG and PNG, Mermaid, HTML."""
