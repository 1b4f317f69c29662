"""The shape of the settings: every section, every key with its type, range, default and a line of explanation.

This is the one table: values are checked against it, messages quote it, and `watchdog init` writes it out. A field
named `grace_s` or `need_bytes` is the key `grace` or `need` in the file; the unit is written with the value there.
Refuses to read anything; `settings.py` does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

from watchdog.contract import BATCH_HALVINGS_MOST, ENV_PREFIX, PHASES
from watchdog.core import notice
from watchdog.settings_limits import Checks, Limits
from watchdog.settings_meta import key, key_name

JOB_NAME_PATTERN: Final = r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}\Z"
DEFAULT_JOB: Final = "default"
# Registered with no service, and outside 9100-9999, where each number already belongs to some Prometheus exporter.
DEFAULT_METRICS_PORT: Final = 11477

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
_KIB, _MIB, _GIB, _TIB = 1024, 1024**2, 1024**3, 1024**4


def _deadline(description: str) -> Meta:
    return key(description, kind="duration", ge=1, le=7 * _DAY)


def _check_command(command: tuple[str, ...]) -> str:
    if any("\0" in argument for argument in command):
        return "an argument holds a NUL character"
    return "" if not command or command[0] else "the first text, the program, is empty"


# The trainer hears of its own supervisor only, never of the supervisor's service manager.
_OURS: Final = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})


def _check_environment(environment: Mapping[str, str]) -> str:
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            return f"{name!r} cannot be an environment variable"
        if name.startswith(ENV_PREFIX) or name in _OURS:
            return f"{name} is set by the supervisor itself"
    return ""


def _check_progress(text: str) -> str:
    if text in ("auto", "off"):
        return ""
    from watchdog.classify.progress_lines import PatternError, pattern_of  # only for who names a pattern

    try:
        pattern_of(text)
    except PatternError as error:
        return str(error)
    return ""


class Job(Struct, frozen=True, kw_only=True, rename=key_name):
    """What is to be trained. Its identity is `checkpoints`."""

    name: Annotated[
        str,
        key(
            "name of the job: of its state folder, in --job and in metrics; a job with a command of its own and no "
            "name is called after its program",
            allowed="up to 64 letters, digits, '.', '_' or '-', not beginning with '.'",
            pattern=JOB_NAME_PATTERN,
        ),
    ] = DEFAULT_JOB
    command: Annotated[
        tuple[str, ...],
        key(
            "the trainer, one text for each argument; empty = the built-in default job",
            allowed='a list of texts such as ["python", "train.py"]',
            check=_check_command,
        ),
    ] = ()
    checkpoints: Annotated[
        Path,
        key(
            "folder of the checkpoints; not given = checkpoints/ in the job's state folder",
            kind="path",
            example='"~/runs/my-job"',
        ),
    ]
    level: Annotated[
        Literal[0, 1, 2],
        key(
            "how much of the job contract the trainer speaks: 0 nothing, 1 beats, 2 beats and checkpoints; "
            "auto = 2 for the built-in job or when `checkpoints` is given, else 0",
            allowed='0, 1, 2 or "auto"',
            computed="auto",
        ),
    ]
    directory: Annotated[
        Path,
        key(
            "working folder of the trainer; not given = where `watchdog run` was typed", kind="path", example='"~/code"'
        ),
    ]
    devices: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^([0-9]{1,3}|(GPU|MIG)-[0-9A-Za-z/-]{1,80})\Z")], ...] | Literal["all"],
        key(
            "GPUs that the job uses, by UUID prefix or index",
            allowed='"all" or a list of UUID prefixes and indexes such as ["GPU-3f1c", "0"]',
        ),
    ] = "all"
    progress: Annotated[
        str,
        key(
            "where a trainer that makes no beats shows its progress in its output: auto, off, huggingface, lightning, "
            "nanogpt, torchtitan, or a regular expression with the named groups step, loss, tokens (any of them)",
            allowed='one of these words, or an expression such as "step (?P<step>[0-9]+)"',
            check=_check_progress,
        ),
    ] = "auto"
    target_step: Annotated[
        Annotated[int, Meta(ge=1, le=2**53)] | None,
        key(
            "step at which the job is finished; not given = the trainer says it",
            allowed="a whole number of at least 1",
            example="1000",
        ),
    ] = None
    shrink_batch: Annotated[
        int,
        key(
            "how often the micro-batch may be halved after CUDA ran out of memory, with as many tokens a step as "
            "before; the trainer must honour GPUHOST_WATCHDOG_BATCH_HALVINGS, as the built-in one does",
            ge=0,
            le=BATCH_HALVINGS_MOST,
        ),
    ] = 0
    environment: Annotated[
        dict[str, str],
        key(
            "environment variables added to the trainer's",
            allowed='a table of texts such as { OMP_NUM_THREADS = "2" }',
            check=_check_environment,
        ),
    ] = field(default_factory=dict)

    @property
    def built_in(self) -> bool:
        """Whether this is the bundled trainer's own job: no command is configured or given."""
        return not self.command


class State(Struct, frozen=True, kw_only=True, rename=key_name):
    """Where the supervisor remembers."""

    folder: Annotated[
        Path,
        key(
            "folder for ledgers, logs and locks, one subfolder a job; not given = $XDG_STATE_HOME/gpuhost-watchdog",
            kind="path",
            example='"~/.local/state/gpuhost-watchdog"',
        ),
    ]


class Memory(Struct, frozen=True, kw_only=True, rename=key_name):
    """Host memory."""

    need_bytes: Annotated[
        Annotated[int, Meta(ge=0, le=64 * _TIB)] | None,
        key(
            "host memory that must be available before a launch; auto = 1 GiB, and 3 GiB for a command of one's own "
            "where there is a GPU that it may use",
            kind="size",
            allowed='a size from 0B to 64TiB, such as "500MB" or "3GiB", or "auto"',
            computed="auto",
        ),
    ] = None
    reclaim: Annotated[
        bool,
        key(
            "have the kernel give page cache back by itself where a launch lacks memory; false: by hand alone, with "
            "watchdog reclaim",
            allowed="true or false",
        ),
    ] = True


class Disk(Struct, frozen=True, kw_only=True, rename=key_name):
    """Disk space."""

    need_bytes: Annotated[
        int, key("free space for state and for checkpoints before a launch", kind="size", ge=0, le=1024 * _TIB)
    ] = _GIB


class Deadlines(Struct, frozen=True, kw_only=True, rename=key_name):
    """How long each phase may go without a beat before the run counts as stalled.

    What is left at its default is an upper limit, below which `learn` goes by what this job's own phases have taken.
    """

    learn: Annotated[
        bool,
        key(
            "shorten the deadlines that are left at their defaults, as this job's own runs show how long its phases "
            "take; one that you choose is taken as it is",
            allowed="true or false",
        ),
    ] = True
    factor: Annotated[
        float,
        key(
            "a learned deadline is this many times the longest silence that was seen; and a run that is asked to leave "
            "has as many times its step and its save, if that is more than [stop] grace",
            allowed="a number from 1.5 to 100",
            ge=1.5,
            le=100,
        ),
    ] = 3.0
    floor_s: Annotated[float, _deadline("the shortest deadline that is learned for a training step")] = _MINUTE / 2

    start_s: Annotated[float, _deadline("from the launch to the first beat")] = 2 * _MINUTE
    import_s: Annotated[float, _deadline("importing the frameworks")] = 5 * _MINUTE
    prepare_s: Annotated[float, _deadline("preparing the data")] = 10 * _MINUTE
    load_s: Annotated[float, _deadline("loading model, data and checkpoint")] = 10 * _MINUTE
    compile_s: Annotated[float, _deadline("compiling")] = 30 * _MINUTE
    first_step_s: Annotated[float, _deadline("the first step, with its warm-up")] = 10 * _MINUTE
    train_s: Annotated[float, _deadline("from one training step to the next")] = 2 * _MINUTE
    evaluate_s: Annotated[float, _deadline("validating")] = 15 * _MINUTE
    save_s: Annotated[float, _deadline("writing a checkpoint")] = 10 * _MINUTE
    drain_s: Annotated[float, _deadline("saving and leaving after a request to stop")] = 10 * _MINUTE
    finished_s: Annotated[float, _deadline("ending after the last step was saved")] = _MINUTE

    def for_phase(self, phase: str | None) -> float:
        """Seconds without a beat allowed in `phase`, one of `contract.PHASES`; None or "start" = no beat yet.

        Raises KeyError for a phase that the contract does not know.
        """
        if phase is None or phase == "start":
            return self.start_s
        if phase not in PHASES:
            raise KeyError(phase)
        return float(getattr(self, phase + "_s"))

    @property
    def stated(self) -> frozenset[str]:
        """The phases whose deadline a person has chosen: another one than the default, which `watchdog init` writes."""
        usual = Deadlines()
        return frozenset(phase for phase in PHASES if self.for_phase(phase) != usual.for_phase(phase))


class Stop(Struct, frozen=True, kw_only=True, rename=key_name):
    """Stopping a run."""

    grace_s: Annotated[
        float, key("from TERM until what is left is killed: time to save", kind="duration", ge=1, le=_DAY)
    ] = _MINUTE
    kill_wait_s: Annotated[
        float, key("from KILL until what still lives makes it a hold", kind="duration", ge=1, le=_HOUR)
    ] = 20.0


class Relaunch(Struct, frozen=True, kw_only=True, rename=key_name):
    """Bringing a job back."""

    failures: Annotated[int, key("failures in a row without a new checkpoint that make it a hold", ge=1, le=100)] = 3
    backoff_s: Annotated[
        float,
        key("least wait before a second retry; the longest is 2, 4, 8 ... times it", kind="duration", ge=0, le=_DAY),
    ] = 10.0
    backoff_limit_s: Annotated[float, key("longest wait before a retry", kind="duration", ge=0, le=_DAY)] = 10 * _MINUTE
    gate_wait_s: Annotated[
        float, key("how long an unmet gate is waited for before it becomes a hold", kind="duration", ge=0, le=7 * _DAY)
    ] = 10 * _MINUTE


class Log(Struct, frozen=True, kw_only=True, rename=key_name):
    """The trainer's output."""

    limit_bytes: Annotated[
        int, key("disk space of one run's log; beyond it the oldest output goes", kind="size", ge=64 * _KIB, le=_TIB)
    ] = 64 * _MIB
    runs: Annotated[int, key("run folders that are kept", ge=1, le=10_000)] = 20


class Retention(Struct, frozen=True, kw_only=True, rename=key_name):
    """Deleting old checkpoints of a job of level 2; the newest two verified ones always stay."""

    when: Annotated[
        Literal["needed", "always", "never"],
        key(
            "when checkpoints are deleted; needed: while their disk has less than [disk] need, or less than one more "
            "of them takes, and no more than it lacks; always: all beyond the keys below, after each new one; never: "
            "by hand alone, with watchdog prune",
            allowed='"needed", "always" or "never"',
        ),
    ] = "needed"
    keep_last: Annotated[int, key("so many of the newest verified checkpoints stay", ge=2, le=10_000)] = 3
    keep_every: Annotated[
        Annotated[int, Meta(ge=1, le=2**53)] | None,
        key(
            "checkpoints of each so many steps stay for good; not given = none but the newest",
            allowed="a whole number of at least 1",
            example="10000",
        ),
    ] = None
    leftovers: Annotated[
        bool,
        key(
            "delete what is older than a day and no checkpoint any more, too: refused ones in quarantine/, and "
            "temporary files of saves that never ended",
            allowed="true or false",
        ),
    ] = False


class Metrics(Struct, frozen=True, kw_only=True, rename=key_name):
    """Prometheus metrics, on 127.0.0.1 only."""

    port: Annotated[
        Annotated[int, Meta(ge=0, le=65535)] | Literal["off"],
        key("port of the metrics; 0 = any free one", allowed='a whole number from 0 to 65535, or "off"'),
    ] = DEFAULT_METRICS_PORT


_COMMAND: Final = f'a list of texts such as ["notify-send", "{{summary}}"]; placeholders are {notice.ALLOWED}'


def _command_for(event: str) -> Meta:
    return key(
        f"the command for {event}; empty = `command`",
        allowed="a list of texts, as in `command`",
        check=notice.wrong_with,
    )


class Notify(Struct, frozen=True, kw_only=True, rename=key_name):
    """Telling a person of a hold, a recovery, or a blindness, once each."""

    command: Annotated[
        tuple[str, ...],
        key(
            "a program and its arguments, without a shell; the record comes as JSON on its standard input, and "
            "of the environment it gets little more than PATH and HOME; try it: watchdog notify --test hold; "
            "empty = nobody is told",
            allowed=_COMMAND,
            check=notice.wrong_with,
        ),
    ] = ()
    hold: Annotated[tuple[str, ...], _command_for("a hold")] = ()
    recovery: Annotated[tuple[str, ...], _command_for("a run that trains again after a failure")] = ()
    blindness: Annotated[tuple[str, ...], _command_for("something unseen for [limits] blind")] = ()
    events: Annotated[
        tuple[Literal["hold", "recovery", "blindness"], ...],
        key("what a person is told of", allowed="a list of hold, recovery, blindness"),
    ] = ("hold", "recovery", "blindness")
    timeout_s: Annotated[
        float, key("how long the command may take before it is ended", kind="duration", ge=1, le=2 * _MINUTE)
    ] = 20.0

    def command_for(self, event: str) -> tuple[str, ...]:
        """The command template of one of `notice.EVENTS`; empty: there is none."""
        own: tuple[str, ...] = {
            notice.HOLD: self.hold,
            notice.RECOVERY: self.recovery,
            notice.BLINDNESS: self.blindness,
        }[event]
        return own or self.command


class Loop(Struct, frozen=True, kw_only=True, rename=key_name):
    """The supervisor's own rhythm."""

    period_s: Annotated[float, key("time between two looks", kind="duration", ge=0.05, le=10)] = 1.0


class Probe(Struct, frozen=True, kw_only=True, rename=key_name):
    """Measuring a device with a matrix product."""

    python: Annotated[
        Path,
        key(
            "the Python that has torch, a path or a name on PATH; not given = the one that watchdog runs under",
            kind="program",
            example='"~/venv/bin/python"',
        ),
    ]
    deadline_s: Annotated[
        float, key("how long one measurement may take, with importing torch", kind="duration", ge=5, le=_HOUR)
    ] = 2 * _MINUTE
    memory_bytes: Annotated[
        int,
        key("memory that one measurement may take, on the host and on the device", kind="size", ge=256 * _MIB, le=_TIB),
    ] = 4 * _GIB


class Settings(Struct, frozen=True, kw_only=True):
    """Everything that was configured, checked and resolved: paths are absolute, `level` is a number.

    `probe.python` may be a name that PATH decides on. `source` names where values came from, in the order in which they
    were applied: the file, then environment variables, then "command line"; ("defaults",) when there was nothing.
    `config_file` is the file that was read.
    """

    job: Job
    state: State
    memory: Memory
    disk: Disk
    deadlines: Deadlines
    stop: Stop
    relaunch: Relaunch
    log: Log
    retention: Retention
    metrics: Metrics
    notify: Notify
    loop: Loop
    probe: Probe
    checks: Checks
    limits: Limits
    source: tuple[str, ...] = ("defaults",)
    config_file: Path | None = None

    @property
    def job_folder(self) -> Path:
        """The job's own folder under the state folder."""
        return self.state.folder / self.job.name


SHARED_SECTIONS: Final[Mapping[str, type[Struct]]] = {
    "state": State,
    "memory": Memory,
    "disk": Disk,
    "deadlines": Deadlines,
    "stop": Stop,
    "relaunch": Relaunch,
    "log": Log,
    "retention": Retention,
    "metrics": Metrics,
    "notify": Notify,
    "loop": Loop,
    "probe": Probe,
    "checks": Checks,
    "limits": Limits,
}
SECTIONS: Final[Mapping[str, type[Struct]]] = {"job": Job, **SHARED_SECTIONS}


def default_state_folder(environ: Mapping[str, str], home: Path) -> Path:
    """`$XDG_STATE_HOME/gpuhost-watchdog`; a relative value is ignored, as the XDG specification asks."""
    base = environ.get("XDG_STATE_HOME", "")
    return (Path(base) if os.path.isabs(base) else home / ".local/state") / "gpuhost-watchdog"
