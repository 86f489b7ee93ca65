"""What flowrl says of graphs: the catalogue, differences, schemas, projects."""
