"""Several machines in one run: hosts that wait for it, and its connections to them."""
