"""The execution of a graph. This package executes one site; its subpackages connect, control and start several."""
