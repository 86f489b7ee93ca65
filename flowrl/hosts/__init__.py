"""Several machines in one run: those that wait for it, and the run's end of the connections to them."""
