"""Runs: their folders and results, their display, and queries to those that are active."""
