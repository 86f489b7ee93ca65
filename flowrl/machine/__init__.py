"""This machine: numerics, memory, open files, network addresses, child processes."""
