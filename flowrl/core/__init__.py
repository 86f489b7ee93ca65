"""What nodes and the engine share: batches, state, ports, parameters, the node and its context, errors."""
