"""tensorboardX reads the files for TensorBoard as they were meant."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.api import load
from flowrl.core.histogram import histogram_of
from flowrl.runs.folder import RunFolder
from flowrl.runs.tensorboard import TensorBoardWriter, crc32c, masked_crc32c


def read(folder: Path) -> list[Any]:
    """The events of the only file, each with its checksums checked by tensorboardX."""
    [path] = folder.iterdir()
    return read_file(path)


def read_file(path: Path) -> list[Any]:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c as theirs

    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        body, rest = data[12 : 12 + length], data[12 + length :]
        assert struct.unpack("<I", data[8:12])[0] == theirs(data[:8])
        assert struct.unpack("<I", rest[:4])[0] == theirs(body)
        found.append(Event.FromString(body))
        data = rest[4:]
    return found


@pytest.mark.parametrize("step", [0, 1, 127, 128, 300, 2**31, 2**62])
def test_values_are_read_as_they_were_written(step: int, tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    writer.add("a/évaluator", step, {"return_mean": 1.5, "empty": 0.0, "long" * 50: -2.25})
    writer.close()
    first, event = read(tmp_path)
    assert (first.file_version, first.step) == ("brain.Event:2", 0)
    found = {value.tag: value.simple_value for value in event.summary.value}
    assert event.step == step
    names = ["a/évaluator/return_mean", "a/évaluator/empty", f"a/évaluator/{'long' * 50}"]
    assert found == dict(zip(names, [1.5, 0.0, -2.25], strict=True))
    assert 0 <= event.wall_time - first.wall_time < 60


def test_histograms_are_read_as_they_were_written(tmp_path: Path) -> None:
    histogram = histogram_of([[0.0, 1.0, math.nan], [3.0, math.inf, 3.0]])
    assert histogram is not None
    writer = TensorBoardWriter(tmp_path)
    writer.add_histograms("buffer", 300, {"priority": histogram})
    writer.close()
    event = read(tmp_path)[1]
    [value] = event.summary.value
    found = value.histo
    assert (event.step, value.tag) == (300, "buffer/priority")
    assert (found.min, found.max, found.num, found.sum, found.sum_squares) == (0, 3, 4, 7, 19)
    counts = dict(zip(found.bucket_limit, found.bucket, strict=True))
    assert {limit: n for limit, n in counts.items() if n} == {0.1: 1, 1.1: 1, 3.0: 2}


def hparams_of(event: Any) -> Any:
    """What the page HPARAMS reads of an event."""
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    [value] = event.summary.value
    assert value.metadata.plugin_data.plugin_name == "hparams"
    return value.tag, HParamsPluginData.FromString(value.metadata.plugin_data.content)


def test_settings_and_the_outcome_are_those_of_a_session(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    writer.begin_session({"policy.lr": 0.5, "n": 3, "model": "mlp", "dueling": True, "off": False})
    writer.end_session(success=False)
    writer.close()
    (start_tag, start), (end_tag, end) = map(hparams_of, read(tmp_path)[1:])
    assert start_tag == "_hparams_/session_start_info"
    found = start.session_start_info.hparams
    assert {name: found[name].number_value for name in ("policy.lr", "n")} == {
        "policy.lr": 0.5,
        "n": 3.0,
    }
    assert found["model"].string_value == "mlp"
    assert [found[n].WhichOneof("kind") for n in ("dueling", "off")] == ["bool_value"] * 2
    assert [found[n].bool_value for n in ("dueling", "off")] == [True, False]
    assert end_tag == "_hparams_/session_end_info"
    assert (end.session_end_info.status, end.session_end_info.end_time_secs > 1e9) == (2, True)


def test_a_run_that_continues_keeps_the_settings_that_it_has_written(tmp_path: Path) -> None:
    """A run continues from a resolved graph, whose settings have other names: `learner.policy.lr`."""
    for settings, continue_after in (({"policy.lr": 0.5}, None), ({"learner.policy.lr": 0.5}, 5)):
        folder = RunFolder(tmp_path)
        folder.open_tensorboard(settings, continue_after)
        folder.close()
    events = [event for path in (tmp_path / "tb").iterdir() for event in read_file(path)]
    [start] = [event for event in events if event.HasField("summary")]
    assert [*hparams_of(start)[1].session_start_info.hparams] == ["policy.lr"]


def test_a_run_has_its_settings_and_its_speed(tmp_path: Path) -> None:
    run = load("cartpole_dqn", {"policy.lr": 0.003, "buffer.log_every_pushes": 10})
    result = run.run(train_iters=96, seed=4, out=tmp_path / "r", quiet=True)
    _, start, *events, end = read(tmp_path / "r" / "tb")
    found = hparams_of(start)[1].session_start_info.hparams
    assert (found["policy.lr"].number_value, found["seed"].number_value) == (0.003, 4)
    assert found["evaluator.weights.every"].number_value == 96
    assert hparams_of(end)[1].session_end_info.status == 1
    histograms = {
        value.tag for event in events for value in event.summary.value if value.HasField("histo")
    }
    assert histograms == {
        "collector/return",
        "collector/action",
        "buffer/age_iters",
        "evaluator/return",
    }
    speeds = {
        value.tag: (event.step, value.simple_value)
        for event in events
        for value in event.summary.value
        if value.tag.startswith("speed/")
    }
    assert speeds.keys() == {"speed/env_steps_per_s", "speed/train_iters_per_s"}
    assert speeds["speed/env_steps_per_s"][0] == result.env_steps
    # The last of them may be 0: nothing may be done between the last two rows of timings.
    assert all(speed >= 0 for _, speed in speeds.values())


def test_values_beyond_float32_become_infinite_and_nan_stays_nan(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    writer.add("n", 1, {"huge": 1e300, "low": -1e300, "nan": math.nan, "inf": math.inf})
    writer.close()
    values = [value.simple_value for value in read(tmp_path)[1].summary.value]
    assert values[:2] == [math.inf, -math.inf]
    assert math.isnan(values[2])
    assert values[3] == math.inf


def test_the_file_has_the_name_that_tensorboard_looks_for(tmp_path: Path) -> None:
    TensorBoardWriter(tmp_path).close()
    [path] = tmp_path.iterdir()
    assert path.name.startswith("events.out.tfevents.")


def test_the_checksum_equals_published_check_values() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C's definition
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    assert crc32c(b"\xff" * 32) == 0x62A8AB43


@given(st.binary(max_size=200))
def test_masked_checksums_equal_those_of_tensorboardx(data: bytes) -> None:
    from tensorboardX.record_writer import masked_crc32c as theirs

    assert struct.unpack("<I", masked_crc32c(data))[0] == theirs(data)


def test_writing_event_files_loads_neither_torch_nor_protobuf() -> None:
    code = """
import sys
import flowrl.runs.run
print(sorted({"torch", "tensorboardX", "google.protobuf"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
