"""What the coordinator and the sites say to each other, and what each keeps for it: leases, cuts, records."""
