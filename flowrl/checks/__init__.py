"""From graph to program: what can be known, and proved, before anything is made."""
