"""Edges, states and calls between sites."""
