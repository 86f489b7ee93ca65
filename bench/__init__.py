"""What is claimed about speed, as programs: `make bench` runs all, `python -m bench NAME` one."""
