"""The sites of a run, their start and supervision, and the coordinator that directs them."""
