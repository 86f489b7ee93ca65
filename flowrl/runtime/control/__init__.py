"""Control messages between the coordinator and the sites, and their state: leases, cuts, counts, records, weights."""
