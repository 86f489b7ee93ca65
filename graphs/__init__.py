"""The bundled graphs: `flowrl run NAME` finds NAME.yaml here."""
