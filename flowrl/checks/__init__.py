"""Checks of a graph, and its serial program: all that can be known and proved before any node is made."""
