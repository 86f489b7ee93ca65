"""The launcher `slurm` against commands that say what the test wants."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from flowrl.cluster.join_file import JoinInfo, RunIdentity
from flowrl.cluster.launcher import HostOrder, Launcher, LaunchStatus
from flowrl.core.errors import FlowError, GraphError
from flowrl.graph.launch import load_launch

FAKE = """\
#!/bin/sh
echo "{name} $*" >> {folder}/calls
cat {folder}/{name}.out 2>/dev/null
cat {folder}/{name}.err >&2 2>/dev/null
exit $(cat {folder}/{name}.status 2>/dev/null || echo 0)
"""
UNREACHABLE = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


class FakeSlurm:
    """Commands of Slurm on the path: what they print, and how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("sbatch", "squeue", "scancel", "srun"):
            path = folder / name
            path.write_text(FAKE.format(name=name, folder=folder))
            path.chmod(0o755)

    def says(self, name: str, out: str = "", err: str = "", status: int = 0) -> None:
        (self.folder / f"{name}.out").write_text(out)
        (self.folder / f"{name}.err").write_text(err)
        (self.folder / f"{name}.status").write_text(str(status))

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr("flowrl.cluster.launchers.slurm.POLL_S", 0.0)
    monkeypatch.setattr("flowrl.cluster.launchers.slurm.LEAVE_S", 0.0)
    made = FakeSlurm(tmp_path / "bin")
    made.says("sbatch", "7;cluster\n")
    return made


def started(tmp_path: Path, **settings: Any) -> Launcher:
    (spec,) = load_launch({"type": "slurm", **settings})
    launcher: Launcher = spec.make()
    info = JoinInfo("tcp://127.0.0.1:1", RunIdentity("r", 0))
    folder = tmp_path / "hosts"
    folder.mkdir()
    launcher.start(
        HostOrder(info, folder / "join.json", folder, "cpu", "my-run", ("--label", "cpu"))
    )
    return launcher


def test_a_job_is_submitted_with_its_size_and_options(slurm: FakeSlurm, tmp_path: Path) -> None:
    launcher = started(
        tmp_path, nodes=4, hosts_per_node=2, cpus=8, partition="big", time="90m",
        options=["--account=physics"], setup=["module load python"], python="/opt/python",
    )  # fmt: skip
    folder = tmp_path / "hosts"
    size = "--nodes=4 --ntasks=8 --ntasks-per-node=2 --cpus-per-task=8"
    assert slurm.calls == [
        "sbatch --parsable --no-kill --requeue --open-mode=append --job-name=flowrl-my-run "
        f"{size} --output={folder}/cpu.job.log --partition=big --time=90 --account=physics {folder}/cpu.job.sh"
    ]
    job = (folder / "cpu.job.sh").read_text()
    assert "srun --no-kill --kill-on-bad-exit=0 --wait=0" in job
    assert f"--output={folder}/cpu.%t.log {size} /bin/sh {folder}/cpu.host.sh" in job
    host = (folder / "cpu.host.sh").read_text()
    command = f"/opt/python -m flowrl host --join {folder}/join.json --label cpu"
    assert host.index("module load python") < host.index(command)
    assert launcher.host_count == 8
    assert launcher.facts() == {"job": "7"}


@pytest.mark.parametrize(
    ("state", "waiting"),
    [
        ("PENDING|Resources||N/A", "job 7 is queued (Resources)"),
        ("CONFIGURING|None|n1|N/A", "job 7 is configuring"),
        ("SUSPENDED|None|n1|N/A", "job 7 is suspended"),
        ("RUNNING|None|n[1-2]|N/A", ""),
        ("COMPLETING|None|n1|N/A", ""),
    ],
)
def test_a_job_that_has_not_ended_waits_or_runs(
    slurm: FakeSlurm, tmp_path: Path, state: str, waiting: str
) -> None:
    launcher = started(tmp_path)
    slurm.says("squeue", f"{state}\n")
    assert launcher.watch() == LaunchStatus(waiting=waiting, news=["job 7 is submitted"])
    assert launcher.facts()["state"] == state.partition("|")[0]


@pytest.mark.parametrize(
    ("state", "failure"),
    [
        ("CANCELLED|None|n1|N/A", "job 7 was cancelled (scancel)"),
        ("COMPLETED|None|n1|N/A", "job 7 is over: all of its hosts have ended"),
        ("FAILED|NonZeroExitCode|n1|N/A", "job 7 failed (NonZeroExitCode)"),
        ("TIMEOUT|TimeLimit|n1|N/A", "job 7 reached its time limit (TimeLimit)"),
        ("NODE_FAIL|None|n1|N/A", "job 7 was ended, because a node failed"),
        ("OUT_OF_MEMORY|OutOfMemory|n1|N/A", "job 7 ran out of memory (OutOfMemory)"),
        ("PREEMPTED|None|n1|N/A", "job 7 was preempted by another job"),
    ],
)
def test_a_job_that_has_ended_is_a_failure_with_its_last_words(
    slurm: FakeSlurm, tmp_path: Path, state: str, failure: str
) -> None:
    launcher = started(tmp_path)
    slurm.says("squeue", f"{state}\n")
    log = tmp_path / "hosts" / "cpu.0.log"
    log.write_text("first\nno room on the disk\n")
    assert launcher.watch().failure == f"{failure}; the last line of {log}: no room on the disk"
    launcher.end()
    assert not any(call.startswith("scancel") for call in slurm.calls)


def test_a_job_without_any_log_hints_at_the_folder(slurm: FakeSlurm, tmp_path: Path) -> None:
    launcher = started(tmp_path)
    slurm.says("squeue", "FAILED|None|n1|N/A\n")
    expected = f"it wrote no log: do the nodes share {tmp_path / 'hosts'}? Give the run another folder with --out"
    assert expected in launcher.watch().failure


def test_slurm_that_does_not_answer_is_told_once_and_changes_nothing(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    launcher = started(tmp_path)
    slurm.says("squeue", "PENDING|Priority||N/A\n")
    launcher.watch()
    slurm.says("squeue", err=UNREACHABLE, status=1)
    told = launcher.watch()
    assert told.news == [f"Slurm does not answer ({UNREACHABLE}); the hosts go on"]
    assert (told.waiting, told.failure) == ("job 7 is queued (Priority)", "")
    assert not launcher.watch().news
    slurm.says("squeue", "RUNNING|None|n1|N/A\n")
    assert launcher.watch() == LaunchStatus(news=["Slurm answers again"])


def test_a_job_that_slurm_has_forgotten_is_over(slurm: FakeSlurm, tmp_path: Path) -> None:
    launcher = started(tmp_path)
    slurm.says("squeue", err="slurm_load_jobs error: Invalid job id specified", status=1)
    assert "job 7 is over" in launcher.watch().failure


def test_what_is_left_at_the_end_is_cancelled(slurm: FakeSlurm, tmp_path: Path) -> None:
    launcher = started(tmp_path)
    slurm.says("squeue", "RUNNING|None|n1|N/A\n")
    launcher.end()
    assert slurm.calls[-1] == "scancel 7"


def test_a_job_that_is_not_accepted_is_told_in_the_words_of_slurm(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    slurm.says("sbatch", err="sbatch: error: x\nsbatch: error: Invalid account\n", status=1)
    with pytest.raises(FlowError, match=r"^sbatch: error: Invalid account$"):
        started(tmp_path)


def test_without_slurm_the_error_says_where_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        FlowError, match=r"sbatch: there is no such command here; start the run on a login"
    ):
        started(tmp_path)


def test_within_a_job_the_hosts_are_a_step_of_it(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    slurm.says(
        "srun", err="srun: error: Unable to create step: More processors requested", status=1
    )
    launcher = started(tmp_path, nodes=2, options=["--mem=4G"])
    while not (status := launcher.watch()).failure:
        pass
    assert (
        "ended with status 1 (srun: error: Unable to create step: More processors" in status.failure
    )
    assert launcher.facts() == {"job": "12"}
    assert slurm.calls[0].startswith("srun --mem=4G --no-kill ")
    launcher.end()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"time": "soon"}, "'soon' is no time; expected a time such as 30m or 2h"),
        ({"nodes": 0}, "nodes is 0"),
        ({"node": 2}, "unknown key 'node'; did you mean 'nodes'?"),
        ({"options": "--account=x"}, "options"),
    ],
)
def test_wrong_settings_are_refused(settings: Any, text: str) -> None:
    with pytest.raises(GraphError) as error:
        load_launch({"type": "slurm", **settings})
    assert text in str(error.value)
