"""How wide text is in a picture: upper bounds for usual sans-serif fonts, of which DejaVu Sans is among the widest."""

from __future__ import annotations

NAME_SIZE = 14.0  # pixels; the names of nodes are bold
SMALL_SIZE = 12.0  # every other text within the picture
TITLE_SIZE, ABOUT_SIZE = 19.0, 13.0  # above the picture

_EM_BY_CHARACTERS = {  # the width of a character, as a share of the size
    "ijl'|.,:; IJ/\\·": 0.35,
    'ft()[]!-r"': 0.46,
    "*_`sz?cL": 0.56,
    "kFvxyPaoTYebdghnpquES0123456789${}–": 0.65,
    "KAVBRXZCUHNDG&OQ": 0.80,
    "w#+<=>^~→×M": 0.87,
}
_EM = {c: em for characters, em in _EM_BY_CHARACTERS.items() for c in characters}
_WIDEST_EM = 1.0
_BOLD = 1.13  # how much wider bold text is


def text_width(text: str, size: float = SMALL_SIZE, bold: bool = False) -> float:
    """The width of a line of text, in pixels."""
    return sum(_EM.get(c, _WIDEST_EM) for c in text) * size * (_BOLD if bold else 1.0)
