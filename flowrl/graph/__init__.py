"""The graph format: from YAML files to a resolved graph, its placements, and back to YAML."""
