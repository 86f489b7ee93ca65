"""A graph as text and pictures: reports, the catalogue, DOT, SVG, PNG, Mermaid, HTML."""
