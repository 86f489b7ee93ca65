"""What flowrl knows of a machine and sets on it: numerics, memory, open files, network addresses."""
