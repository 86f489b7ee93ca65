"""flowrl: reinforcement learning as a dataflow graph. Placement is not semantics."""
