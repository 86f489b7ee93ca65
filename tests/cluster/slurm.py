"""A Slurm cluster of virtual nodes on this machine; needs root, and `slurmctld`, `slurmd` and `munged`."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from flowrl.machine.network_address import open_listener
from tests.cluster.network import Place

SOON_S = 60.0
NODES = ("n1", "n2", "n3")
LOOPBACK = Place()
CONFIGURATION = """\
ClusterName=flowrl
SlurmctldHost={machine}({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
ReturnToService=2
MessageTimeout=5
SlurmdTimeout={node_timeout_s}
KillWait=5
SchedulerParameters=batch_sched_delay=0,sched_interval=1
{node_lines}
PartitionName=cpu Nodes={nodes} Default=YES MaxTime=INFINITE State=UP
"""
NODE_LINE = (
    "NodeName={name} NodeHostname={machine} NodeAddr={address} Port={port} CPUs=2 State=UNKNOWN"
)


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


class SlurmCluster:
    """The daemons of a cluster, and its folder."""

    def __init__(
        self, folder: Path, controller: Place, nodes: Mapping[str, Place], node_timeout_s: int
    ) -> None:
        self._folder, self._controller, self._nodes = folder, controller, nodes
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        machine = socket.gethostname().partition(".")[0]
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)
        for name in ("state", *nodes):
            (folder / name).mkdir()
        lines = [
            NODE_LINE.format(name=name, machine=machine, address=place.address, port=_free_port())
            for name, place in nodes.items()
        ]
        self.configuration = folder / "slurm.conf"
        self.configuration.write_text(
            CONFIGURATION.format(
                folder=folder,
                machine=machine,
                controller=controller.address,
                nodes=",".join(nodes),
                port=_free_port(),
                node_lines="\n".join(lines),
                node_timeout_s=node_timeout_s,
            )
        )

    def start(self) -> None:
        places = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid",
                  "log-file": "munged.log", "seed-file": "munge.seed"}  # fmt: skip
        words = [f"--{option}={self._folder / name}" for option, name in places.items()]
        self._start("munged", "munged", "--foreground", "--force", *words)
        until((self._folder / "munge.socket").exists, "munged does not listen")
        self._start("slurmctld", *self._controller.enter, "slurmctld", "-D")
        for name, place in self._nodes.items():
            self._start(name, *place.enter, "slurmd", "-D", "-N", name)
        idle = f"{len(self._nodes)} idle"
        until(lambda: self.call("sinfo", "-h", "-o", "%D %t") == idle, "nodes are not idle")

    def kill_daemon(self, name: str) -> None:
        """Kill `slurmctld`, or the daemon of a node. What runs on the node lives on."""
        self._daemons[name].kill()
        self._daemons[name].wait()

    def node_state(self, name: str) -> str:
        """The state of a node, such as `idle` or `down*`."""
        return self.call("sinfo", "-h", "-n", name, "-o", "%t")

    def _start(self, name: str, *words: str) -> None:
        with (self._folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                words, stdout=out, stderr=out, start_new_session=True
            )

    def call(self, *words: str) -> str:
        """The output of a command of Slurm; it is empty if the command fails."""
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()

    def jobs(self) -> str:
        """The jobs that have not ended, or why Slurm cannot say that."""
        done = subprocess.run(["squeue", "--noheader"], capture_output=True, text=True, check=False)
        return done.stdout.strip() + done.stderr.strip()

    def remove(self) -> None:
        """Kill all processes of the cluster: those in whose environment its configuration is."""
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # it has just ended
                if f"SLURM_CONF={self.configuration}".encode() in environment.read_bytes():
                    os.kill(int(environment.parent.name), signal.SIGKILL)
        for daemon in self._daemons.values():
            daemon.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _free_port() -> int:
    listener, port = open_listener("127.0.0.1")
    listener.close()
    return port


@contextmanager
def slurm_cluster(
    controller: Place = LOOPBACK,
    nodes: Mapping[str, Place] = dict.fromkeys(NODES, LOOPBACK),
    node_timeout_s: int = 300,
) -> Iterator[SlurmCluster]:
    """A cluster, which `SLURM_CONF` names. It is removed at the end. A node is down that is silent for so long."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    made = SlurmCluster(folder, controller, nodes, node_timeout_s)
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(made.configuration)
    try:
        made.start()
        yield made
    finally:
        made.remove()
        del os.environ["SLURM_CONF"]
        if before is not None:
            os.environ["SLURM_CONF"] = before
