"""A snapshot of an earlier version of flowrl is continued to the same bits, or refused in words."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

import flowrl
from flowrl.core.errors import RunError
from flowrl.runs.snapshot_files import FORMAT, read_newest_snapshot
from tests.runs.kept_snapshot import graph

KEPT = Path(__file__).parent / "data" / "snapshot_2"
ITERS = 40
STATE_DIGEST = "d68fa95d7d1e173180d27160acef5c2e3ff457ee940e2b1646d1868a9718533b"  # of the kept one
DIGEST = "0cd6a6b7981d291bf4594e8d6ecb8ced91ff3806c172fd83e14e4cc3574eb933"  # after `ITERS`
LAST_STATE_DIGEST = "a9dc5ec815e8a297a85a38a651def69782f13aadbd18c022054c533b46073955"


def kept(tmp_path: Path) -> Path:
    return Path(shutil.copytree(KEPT, tmp_path / "run"))


def test_a_kept_snapshot_is_of_this_format() -> None:
    """If the format changes, keep another one (`kept_snapshot.py`), and let this one be migrated or refused."""
    assert KEPT.name.replace("snapshot_", "flowrl snapshot ") == FORMAT
    assert read_newest_snapshot(KEPT).state_digest == STATE_DIGEST


@pytest.mark.parametrize("placement", ["serial", "threads"])
def test_a_kept_snapshot_is_continued_with_the_same_bits(placement: str, tmp_path: Path) -> None:
    found = flowrl.resume(kept(tmp_path), placement=placement, train_iters=ITERS, quiet=True)
    assert found.resumed_after == 17
    assert (found.digest, found.state_digest) == (DIGEST, LAST_STATE_DIGEST)


def test_a_run_without_a_stop_has_the_bits_of_the_kept_one(tmp_path: Path) -> None:
    whole = flowrl.load(graph()).run(train_iters=ITERS, out=tmp_path / "whole", quiet=True)
    assert (whole.digest, whole.state_digest) == (DIGEST, LAST_STATE_DIGEST)


def test_a_snapshot_of_another_format_is_refused_in_words(tmp_path: Path) -> None:
    run = kept(tmp_path)
    manifest = run / "snapshots" / "17" / "manifest.json"
    content = {
        **json.loads(manifest.read_bytes().partition(b"\n")[2]),
        "format": "flowrl snapshot 1",
    }
    text = json.dumps(content).encode()
    manifest.write_bytes(sha256(text).hexdigest().encode() + b"\n" + text + b"\n")
    with pytest.raises(
        RunError, match=r"its format is 'flowrl snapshot 1'.*the version that wrote"
    ):
        flowrl.resume(run, train_iters=ITERS, quiet=True)
