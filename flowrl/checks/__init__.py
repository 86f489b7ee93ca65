"""Checks of a graph, and its serial program: everything that can be known before any node is made."""
