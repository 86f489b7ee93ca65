"""The sites of a run: each one, how they are started and watched, and the coordinator that directs them."""
