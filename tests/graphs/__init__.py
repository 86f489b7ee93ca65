"""The bundled graphs."""
