"""From a graph file to a resolved graph: YAML with positions, edges, placements, the resolved text."""
