"""The launchers: one module for each way to start hosts."""
