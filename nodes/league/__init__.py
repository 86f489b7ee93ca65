"""Leagues: who plays against whom, and how often each player wins."""
