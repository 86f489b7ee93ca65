"""What the launcher of Ray needs: a process that speaks to Ray, and the actors that hold hosts."""
