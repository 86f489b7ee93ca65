"""Starts hosts on the nodes of a Slurm cluster: as a job of their own, or as a step of the job that the run is in."""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pydantic import field_validator

from flowrl.cluster.host_commands import HostCommand, HostCommands, last_line
from flowrl.cluster.launcher import HostOrder, Launcher, LaunchStatus
from flowrl.core.config import param
from flowrl.core.errors import FlowError
from flowrl.graph.sections import parse_seconds

POLL_S = 5.0  # between two questions to Slurm, which serves all users of the cluster
COMMAND_TIMEOUT_S = 20.0
LEAVE_S = 4.0  # in which a job ends whose hosts have left; then it is cancelled
SUBMITTED_WITHIN = "SLURM_JOB_ID"  # the variable that every job has
STATE_FORMAT = "%T|%r|%N|%S"  # state, reason, nodes, expected start
WAITING = ("PENDING", "CONFIGURING", "SUSPENDED", "STOPPED", "REQUEUED")
ENDED = {
    "BOOT_FAIL": "failed, because a node did not boot",
    "CANCELLED": "was cancelled (scancel)",
    "COMPLETED": "is over: all of its hosts have ended",
    "DEADLINE": "was ended at its deadline",
    "FAILED": "failed",
    "NODE_FAIL": "was ended, because a node failed",
    "OUT_OF_MEMORY": "ran out of memory",
    "PREEMPTED": "was preempted by another job",
    "REVOKED": "was revoked",
    "TIMEOUT": "reached its time limit",
}
IS_UNKNOWN = "Invalid job id"  # what Slurm says of a job that ended some minutes ago
# Hosts that end badly are started again on their node: Slurm does not start a task twice.
HOST_SCRIPT = """\
#!/bin/sh
# One host of the run {run}, on one node.
{setup}
count=0
until {command}
do
    count=$((count + 1))
    [ $count -le {restarts} ] || exit 1
    echo "the host has ended; starting it again ($count of {restarts})" >&2
    sleep 1
done
"""
JOB_SCRIPT = """\
#!/bin/sh
# The hosts of the run {run}.
exec {step}
"""


class Slurm(Launcher):
    """Hosts on nodes of a Slurm cluster."""

    class Config(Launcher.Config):
        nodes: int = param(1, "how many nodes", ge=1, le=10_000)
        hosts_per_node: int = param(1, "how many hosts on each node", ge=1, le=1000)
        cpus: int | None = param(None, "CPUs of each host (default: what Slurm gives a task)", ge=1)
        partition: str | None = param(None, "the partition (default: the cluster's)", min_length=1)
        time: str | None = param(
            None, "the time limit of the job, such as 2h (default: the partition's)"
        )
        python: str | None = param(
            None,
            "the Python on the nodes, which has flowrl (default: the one that executes the run)",
            min_length=1,
        )
        setup: list[str] = param(
            [], "lines of shell before each host starts, such as 'module load cuda'"
        )
        options: list[str] = param(
            [], "more options, such as --account=physics, for sbatch, or for srun within a job"
        )
        submit: bool | None = param(
            None, "whether the hosts are a job of their own (default: unless the run is in a job)"
        )
        restarts: int = param(3, "how often a host that has died is started again", ge=0, le=1000)

        @field_validator("time")
        @classmethod
        def _check_limit(cls, limit: str | None) -> str | None:
            if limit is not None and parse_seconds(limit) is None:
                raise ValueError(f"'{limit}' is no time; expected a time such as 30m or 2h")
            return limit

    _hosts: SlurmJob | SlurmStep | None = None

    @property
    def host_count(self) -> int:
        return int(self.config.nodes * self.config.hosts_per_node)

    def start(self, order: HostOrder) -> None:
        is_job = self.config.submit
        if is_job is None:
            is_job = SUBMITTED_WITHIN not in os.environ
        script = self._write(order, "host", self._host_script(order))
        self._hosts = self._submitted(order, script) if is_job else self._step(order, script)

    def watch(self) -> LaunchStatus:
        assert self._hosts is not None
        return self._hosts.watch()

    def end(self) -> None:
        if self._hosts is not None:
            self._hosts.end()

    def facts(self) -> dict[str, str]:
        return {} if self._hosts is None else self._hosts.facts

    # what is started

    def _host_script(self, order: HostOrder) -> str:
        python = self.config.python or sys.executable
        command = order.command([python], str(order.join_file))
        setup = "\n".join(self.config.setup)
        restarts = self.config.restarts
        return HOST_SCRIPT.format(
            run=order.run_name, setup=setup, command=shlex.join(command), restarts=restarts
        )

    def _size(self) -> list[str]:
        """The options of both `sbatch` and `srun` that say how much is wanted."""
        config = self.config
        words = [f"--nodes={config.nodes}", f"--ntasks={self.host_count}"]
        words.append(f"--ntasks-per-node={config.hosts_per_node}")
        return words if config.cpus is None else [*words, f"--cpus-per-task={config.cpus}"]

    def _srun(self, order: HostOrder, script: Path) -> list[str]:
        # the hosts that are left go on when one, or its node, is lost
        survive = ["--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--overlap"]
        logs = ["--open-mode=append", f"--output={order.folder / order.label}.%t.log"]
        return ["srun", *survive, *logs, *self._size(), "/bin/sh", str(script)]

    def _step(self, order: HostOrder, script: Path) -> SlurmStep:
        step = self._srun(order, script)
        step[1:1] = self.config.options
        return SlurmStep(step, order.folder / f"{order.label}.step.log")

    def _submitted(self, order: HostOrder, script: Path) -> SlurmJob:
        step = shlex.join(self._srun(order, script))
        job = self._write(order, "job", JOB_SCRIPT.format(run=order.run_name, step=step))
        words = ["sbatch", "--parsable", "--no-kill", "--requeue", "--open-mode=append"]
        words += [f"--job-name=flowrl-{order.run_name}", *self._size()]
        words += [f"--output={order.folder / order.label}.job.log"]
        if self.config.partition is not None:
            words.append(f"--partition={self.config.partition}")
        seconds = parse_seconds(self.config.time)
        if seconds is not None:
            words.append(f"--time={math.ceil(seconds / 60)}")
        done = _call([*words, *self.config.options, str(job)])
        if done.returncode != 0:
            raise FlowError(_what_it_said(done))
        return SlurmJob(done.stdout.partition(";")[0].strip(), order)

    def _write(self, order: HostOrder, what: str, text: str) -> Path:
        path = order.folder / f"{order.label}.{what}.sh"
        path.write_text(text, encoding="utf-8")
        return path


class SlurmJob:
    """A job that was submitted. Its state is what `squeue` says."""

    def __init__(self, number: str, order: HostOrder) -> None:
        self.facts = {"job": number}
        self._number, self._order = number, order
        self._status = LaunchStatus(waiting=f"job {number} is on its way")
        self._next_poll_s = 0.0
        self._is_answered = True
        self._news = [f"job {number} is submitted"]

    def watch(self) -> LaunchStatus:
        status = self._watched()
        news, self._news = [*self._news, *status.news], []
        return replace(status, news=news)

    def _watched(self) -> LaunchStatus:
        if time.monotonic() < self._next_poll_s or self._status.failure:
            return self._status
        self._next_poll_s = time.monotonic() + POLL_S
        words = ["--noheader", "--states=all", f"--jobs={self._number}", f"--format={STATE_FORMAT}"]
        try:
            done = _call(["squeue", *words])
        except FlowError as error:
            return self._without_answer(str(error))
        if IS_UNKNOWN in done.stderr:
            return self._after("COMPLETED", "")
        if done.returncode != 0 or not done.stdout.strip():
            return self._without_answer(_what_it_said(done))
        news = [] if self._is_answered else ["Slurm answers again"]
        self._is_answered = True
        state, reason, nodes, start = done.stdout.splitlines()[0].strip().split("|")
        self.facts = {"job": self._number, "state": state}
        if nodes:
            self.facts["nodes"] = nodes
        elif start != "N/A":
            self.facts["expected start"] = start
        if state in ENDED:
            return self._after(state, reason)
        waiting = ""
        if state in WAITING:
            what = "is queued" if state == "PENDING" else f"is {state.lower()}"
            waiting = f"job {self._number} {what}{_in_brackets(reason)}"
        self._status = LaunchStatus(waiting=waiting)
        return LaunchStatus(waiting=waiting, news=news)

    def _without_answer(self, why: str) -> LaunchStatus:
        """Hosts do not need Slurm's daemons. So this is told once, and nothing else changes."""
        news = [f"Slurm does not answer ({why}); the hosts go on"] if self._is_answered else []
        self._is_answered = False
        return LaunchStatus(waiting=self._status.waiting, news=news)

    def _after(self, state: str, reason: str) -> LaunchStatus:
        text = f"job {self._number} {ENDED[state]}{_in_brackets(reason)}"
        self._status = LaunchStatus(failure=text + _last_words(self._order))
        return self._status

    def end(self) -> None:
        """Give the hosts, which have been asked to leave, the time to do so, and cancel what is left."""
        deadline = time.monotonic() + LEAVE_S
        while not self._status.failure:
            self._next_poll_s = 0.0
            self.watch()
            if self._status.waiting or not self._is_answered or time.monotonic() > deadline:
                with suppress(FlowError):
                    _call(["scancel", self._number])
                return
            time.sleep(LEAVE_S / 4)


class SlurmStep:
    """A step of the job in which the run is. It is a command of the run's machine."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        self.facts = {"job": os.environ.get(SUBMITTED_WITHIN, "")}
        self._commands = HostCommands([HostCommand("srun", words, log)], restarts=0)
        self._commands.start()

    def watch(self) -> LaunchStatus:
        return self._commands.watch()

    def end(self) -> None:
        self._commands.end()


def _call(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Call a command of Slurm."""
    try:
        return subprocess.run(
            words,
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise FlowError(
            f"{words[0]}: there is no such command here; start the run on a login node of the cluster"
        ) from None
    except subprocess.TimeoutExpired:
        raise FlowError(f"{words[0]} did not answer within {COMMAND_TIMEOUT_S:g} s") from None


def _environment() -> dict[str, str]:
    """The environment without what Slurm says of the job that the run is in: it is not true of another job."""
    return {n: v for n, v in os.environ.items() if n == "SLURM_CONF" or not n.startswith("SLURM_")}


def _what_it_said(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"ended with status {done.returncode}"


def _in_brackets(reason: str) -> str:
    return f" ({reason})" if reason and reason != "None" else ""


def _last_words(order: HostOrder) -> str:
    """The last line of the newest log of a job, or what it means that there is none."""
    logs = sorted(order.folder.glob(f"{order.label}.*.log"), key=lambda log: log.stat().st_mtime)
    for log in reversed(logs):
        line = last_line(log)
        if line:
            return f"; the last line of {log}: {line}"
    return f"; it wrote no log: do the nodes share {order.folder}? Give the run another folder with --out"
