"""The control plane: the coordinator, leases, cuts, and what sites report."""
