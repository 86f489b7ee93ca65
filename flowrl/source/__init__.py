"""From text to graph: files, their tree, and what they mean."""
