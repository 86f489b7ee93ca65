"""Hashes of the parts of a snapshot, and the digest of all parts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowrl.core.array_pieces import pieces_of
from flowrl.core.batch import Array
from flowrl.core.saved_state import SavedState
from flowrl.runtime.snapshot import Parts


@dataclass(frozen=True, slots=True)
class PartHashes:
    """The SHA-256 of a part's text, and of each piece of its arrays."""

    text: str
    arrays: Mapping[str, Sequence[str]]


def hash_part(saved: SavedState) -> PartHashes:
    """Hash a part. The hashes of pieces that are stored already are known."""
    arrays, text = saved.parts()
    hashes = {
        name: [_sha256(piece) for piece in pieces_of(array)] for name, array in arrays.items()
    }
    for name, array in saved.pieces.items():
        copied = {index: hash_piece(piece) for index, piece in array.pieces.items()}
        found = {**array.stored, **copied}
        hashes[name] = [found[index] for index in range(array.count)]
    return PartHashes(_sha256(text.encode()), hashes)


def hash_piece(piece: Array) -> str:
    return _sha256(piece.data)


def _sha256(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()


def digest_of_hashes(parts: Parts, hashes: Mapping[str, PartHashes]) -> str:
    """Return the SHA-256 over all parts: everything that the rest of the run depends on."""
    digest = hashlib.sha256()
    for key in sorted(parts):
        digest.update(f"{key}:{hashes[key].text};".encode())
        for name, array in sorted(parts[key].all_arrays().items()):
            pieces = ",".join(hashes[key].arrays[name])
            digest.update(f"{name}:{array.dtype}:{array.shape}:{pieces};".encode())
    return digest.hexdigest()


def digest_of_parts(parts: Parts) -> str:
    return digest_of_hashes(parts, {key: hash_part(saved) for key, saved in parts.items()})
