"""Runs: the folder, the summary, what a person sees of them."""
