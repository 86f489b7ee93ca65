"""From a graph to its serial program: what can be known, and proved, before anything is made."""
