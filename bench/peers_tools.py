"""The supervisors of bench/peers.py: how each is installed, configured for its best, and started over the same trainer.

Each peer has a virtual environment of its own in the cache, made once, with one pinned release; the project does not
depend on any of them. torch, which torchrun is a part of and ft_launcher needs, is the project's own.
Where a documented option makes a peer survive more, it is on: retries without end, beats if it has any, short polls.
Refuses to change a peer's code.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.campaign_bed import WATCHDOG
from bench.peers_trainer import SILENT_S
from bench.startup import CommandFailedError

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuhost-watchdog" / "peers"
RETRIES = 1000  # for those who must be given a number
OURS = "watchdog"
PINS = {
    "supervisord": ("supervisor==4.3.0",),
    "circus": ("circus==0.19.0",),
    "ft_launcher": ("nvidia-resiliency-ext==0.4.1", "defusedxml", "packaging", "psutil>=6", "pyyaml", "pynvml>=12"),
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What is to be started over one trial's folder, and what is added to its environment."""

    command: Sequence[str]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """`beats`: how the trainer beats for it. `prepare(root, trainer's command)` writes its configuration."""

    name: str
    beats: str
    detects_hangs: bool
    configured: str
    prepare: Callable[[Path, Sequence[str]], Prepared]


def _bin(peer: str, program: str) -> str:
    return str(CACHE / peer / "bin" / program)


def _site(peer: str) -> Path:
    return CACHE / peer / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def install(peer: str) -> None:
    """Make the peer's environment, unless it is there. Raises CommandFailedError."""
    pins = PINS.get(peer)
    if pins is None:
        return
    done = CACHE / peer / "installed"
    purelib = sysconfig.get_path("purelib")  # another checkout's environment may have made it, and be gone
    made = "\n".join([*pins, sys.version.split()[0], purelib])
    if done.exists() and done.read_text() == made:
        return
    folder = CACHE / peer
    pip = [_bin(peer, "python"), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
    steps = [[sys.executable, "-m", "venv", "--clear", str(folder)], [*pip, *pins]]
    if peer == "ft_launcher":  # torch is the project's own: the release it asks for is no part of what is measured
        steps[1:] = [[*pip, "--no-deps", pins[0]], [*pip, *pins[1:]]]
    for step in steps:
        ended = subprocess.run(step, capture_output=True, text=True, timeout=900)
        if ended.returncode != 0:
            raise CommandFailedError(f"{peer} cannot be installed: {ended.stderr.strip()[-300:]}")
    if peer == "ft_launcher":
        (_site(peer) / "zz-torch.pth").write_text(purelib + "\n")
    done.write_text(made)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _words(command: Sequence[str]) -> str:
    """For an ini file: nothing here needs quotes, and a percent sign would be a substitution."""
    assert not any(mark in word for word in command for mark in " %'\"$"), command
    return " ".join(command)


def _ours(root: Path, command: Sequence[str]) -> Prepared:
    words = ", ".join(f'"{word}"' for word in command)
    config = root / "watchdog.toml"
    config.write_text(
        f'[job]\nname = "peers"\nlevel = 2\ncommand = [{words}]\ncheckpoints = "{root}/checkpoints"\n'
        f'[state]\nfolder = "{root}/state"\n'
        '[memory]\nneed = "64MiB"\n[disk]\nneed = "256KiB"\n[metrics]\nport = "off"\n'
        f'[deadlines]\ntrain = "{SILENT_S:g}s"\nsave = "{SILENT_S:g}s"\n[stop]\ngrace = "2s"\n'
    )
    return Prepared(command=[*WATCHDOG, "run", "--config", str(config)])


def _supervisord(root: Path, command: Sequence[str]) -> Prepared:
    config = root / "supervisord.conf"
    config.write_text(
        f"[supervisord]\nnodaemon=true\nuser=root\nlogfile={root}/supervisord.log\npidfile={root}/supervisord.pid\n"
        f"[program:job]\ncommand={_words(command)}\nautorestart=true\nstartretries={RETRIES}\n"
        f"stopasgroup=true\nkillasgroup=true\nredirect_stderr=true\nstdout_logfile={root}/output.log\n"
    )
    if os.geteuid() != 0:
        config.write_text(config.read_text().replace("user=root\n", ""))
    return Prepared(command=[_bin("supervisord", "supervisord"), "-c", str(config)])


def _circus(root: Path, command: Sequence[str]) -> Prepared:
    config, port = root / "circus.ini", _free_port()
    config.write_text(
        f"[circus]\nendpoint = ipc://{root}/e.sock\npubsub_endpoint = ipc://{root}/p.sock\ncheck_delay = 0.5\n"
        f"[watcher:job]\ncmd = {_words(command)}\nnumprocesses = 1\ncopy_env = True\nmax_retry = -1\n"
        f"stop_children = True\nstdout_stream.class = FileStream\nstdout_stream.filename = {root}/output.log\n"
        f"stderr_stream.class = FileStream\nstderr_stream.filename = {root}/output.log\n"
        f"[plugin:hangs]\nuse = circus.plugins.watchdog.WatchDog\nloop_rate = 0.5\nmax_count = {int(SILENT_S / 0.5)}\n"
        f"watchers_regex = ^job$\nport = {port}\nwatchers_stop_signal = 9\n"
    )
    # Its plugins are programs that it looks for on the path.
    path = f"{CACHE / 'circus' / 'bin'}:{os.environ.get('PATH', os.defpath)}"
    return Prepared(
        command=[_bin("circus", "circusd"), str(config)], environment={"PEERS_PORT": str(port), "PATH": path}
    )


def _torchrun(root: Path, command: Sequence[str]) -> Prepared:
    options = ["--standalone", "--nnodes=1", "--nproc-per-node=1", f"--max-restarts={RETRIES}", "--no-python"]
    return Prepared(
        command=[sys.executable, "-P", "-m", "torch.distributed.run", *options, *command],
        environment={
            "TORCHELASTIC_ENABLE_FILE_TIMER": "1",
            "TORCHELASTIC_TIMER_FILE": str(root / "timer"),
            "LOGLEVEL": "INFO",  # else it does not say that an expired timer ends it, too
        },
    )


def _ft_launcher(root: Path, command: Sequence[str]) -> Prepared:
    options = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{_free_port()}", "--nnodes=1", "--nproc-per-node=1"]
    options += [f"--max-restarts={RETRIES}", "--no-python", "--ft-param-initial_rank_heartbeat_timeout=10"]
    options += [f"--ft-param-rank_heartbeat_timeout={SILENT_S:g}", "--ft-param-workload_check_interval=0.5"]
    options += ["--ft-param-enable-nic-monitor=False", "--monitor-interval=0.1"]
    return Prepared(
        command=[_bin("ft_launcher", "ft_launcher"), *options, *command],
        environment={"PEERS_SITE": str(_site("ft_launcher")), "TMPDIR": str(root)},
    )


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            name=OURS,
            beats="none",  # by the job contract, which the trainer speaks anyway
            detects_hangs=True,
            configured=f"level 2, [deadlines] train and save {SILENT_S:g}s, [disk] need 256KiB; else the defaults",
            prepare=_ours,
        ),
        Tool(
            name="supervisord",
            beats="none",
            detects_hangs=False,
            configured=f"autorestart=true, startretries={RETRIES}, killasgroup=true",
            prepare=_supervisord,
        ),
        Tool(
            name="circus",
            beats="circus",
            detects_hangs=True,
            configured=f"max_retry -1, check_delay 0.5, WatchDog plugin: {SILENT_S:g} s",
            prepare=_circus,
        ),
        Tool(
            name="torchrun",
            beats="torch",
            detects_hangs=True,
            configured=f"--max-restarts={RETRIES}, file timer: {SILENT_S:g} s a step",
            prepare=_torchrun,
        ),
        Tool(
            name="ft_launcher",
            beats="nvrx",
            detects_hangs=True,
            configured=f"--max-restarts={RETRIES}, beats: {SILENT_S:g} s, looked at every 0.5 s",
            prepare=_ft_launcher,
        ),
    )
}
