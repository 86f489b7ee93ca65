"""What a fake machine has: cores and memory under the limits of control groups, and GPUs without CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl.machine import cores, resources
from flowrl.machine.control_groups import control_group_files
from flowrl.machine.gpus import gpu_variables, usable_gpus
from flowrl.machine.resources import MachineResources, machine_resources


def write(root: Path, path: str, text: str = "") -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


# cores and control groups


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("groups", "path", "text", "expected"),
    [
        ("0::/job/step", "job/step/cpu.max", "250000 100000", 2),
        ("0::/job/step", "job/cpu.max", "300000 100000", 3),  # of a group around it
        ("0::/job/step", "cpu.max", "max 100000", 8),
        ("0::/docker/abc", "cpu.max", "50000 100000", 1),  # the path is that of the outer machine
        ("0::/../outside", "cpu.max", "400000 100000", 4),
        ("0::/", "cpu.max", "9000000 100000", 8),
        ("3:cpu,cpuacct:/job\n1:memory:/other", "cpu/job/cpu.cfs_quota_us", "200000", 2),
        ("3:cpu,cpuacct:/job", "cpu/job/cpu.cfs_quota_us", "-1", 8),
        ("", "cpu.max", "200000 100000", 2),  # a system that does not name the group
    ],
)
def test_cores_are_those_that_control_groups_leave(
    tmp_path: Path, groups: str, path: str, text: str, expected: int
) -> None:
    write(tmp_path, "proc/self/cgroup", groups)
    write(tmp_path, f"sys/fs/cgroup/{path}", text)
    write(tmp_path, "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000")
    assert cores.usable_cores(tmp_path) == expected


@pytest.mark.usefixtures("eight_cores")
def test_without_control_groups_all_cores_are_usable(tmp_path: Path) -> None:
    assert cores.usable_cores(tmp_path) == 8


def test_a_limit_of_memory_is_looked_for_in_every_group_around_the_process(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/a/b\n")
    names = ("memory.max", "memory", "memory.limit_in_bytes")
    found = [str(f.relative_to(tmp_path)) for f in control_group_files(*names, tmp_path)]
    folders = ("a/b/", "a/", "")
    assert found == [f"sys/fs/cgroup/{folder}memory.max" for folder in folders]


# GPUs


def with_gpus(root: Path, count: int) -> None:
    for number in range(count):
        write(root, f"dev/nvidia{number}")
    write(root, "dev/nvidiactl")
    write(root, "dev/nvidia-uvm")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("0", "1", "2")),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, ("2", "0")),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "1,7,0"}, ("1",)),  # as CUDA does
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937, MIG-1"}, ("GPU-8932f937", "MIG-1")),
    ],
)
def test_gpus_are_those_that_a_process_may_see(
    tmp_path: Path, environ: dict[str, str], expected: tuple[str, ...]
) -> None:
    with_gpus(tmp_path, 3)
    assert usable_gpus(environ, tmp_path, "no-such-tool") == expected


def test_a_variable_alone_makes_no_gpu(tmp_path: Path) -> None:
    assert usable_gpus({"CUDA_VISIBLE_DEVICES": "0,1"}, tmp_path) == ()


def test_a_divided_gpu_is_offered_in_parts(tmp_path: Path) -> None:
    with_gpus(tmp_path, 2)
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\necho 'GPU 0: NVIDIA A100 (UUID: GPU-1a)'\necho 'GPU 1: NVIDIA A100 (UUID: GPU-2b)'\n"
        "echo '  MIG 3g.20gb     Device  0: (UUID: MIG-a)'\necho '  MIG 3g.20gb     Device  1: (UUID: MIG-b)'\n"
    )
    tool.chmod(0o755)
    assert usable_gpus({}, tmp_path, str(tool)) == ("0", "MIG-a", "MIG-b")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("0", "1")),
        ({"HIP_VISIBLE_DEVICES": "1"}, ("1",)),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ("1",)),
        ({"ROCR_VISIBLE_DEVICES": "1"}, ("0",)),  # the GPUs that it leaves are numbered anew
    ],
)
def test_gpus_of_amd_are_found(
    tmp_path: Path, environ: dict[str, str], expected: tuple[str, ...]
) -> None:
    write(tmp_path, "dev/kfd")
    for number, simds in enumerate((0, 256, 256)):  # the first is a CPU
        path = f"sys/class/kfd/kfd/topology/nodes/{number}/properties"
        write(tmp_path, path, f"cpu_cores_count 0\nsimd_count {simds}\n")
    assert usable_gpus(environ, tmp_path) == expected


def test_a_process_is_shown_its_own_gpus() -> None:
    assert gpu_variables(["2", "MIG-a"]) == {
        "CUDA_VISIBLE_DEVICES": "2,MIG-a",
        "HIP_VISIBLE_DEVICES": "2,MIG-a",
    }


# together


def test_resources_are_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(MachineResources(1, 2 * 10**9, ("0",))) == "1 core, 2.0 GB, 1 GPU"
    monkeypatch.setattr(resources, "usable_cores", lambda: 8)
    monkeypatch.setattr(resources, "machine_memory_bytes", lambda: 32 * 10**9)
    monkeypatch.setattr(resources, "usable_gpus", lambda: ())
    assert str(machine_resources()) == "8 cores, 32.0 GB, no GPU"
