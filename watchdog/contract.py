"""The job contract: what a supervised trainer and its supervisor say to each other.

Responsible for the names of the environment variables, the beat file, the checkpoint manifest, the
acknowledgement of what was restored, the failure record and the exit codes; for both directions, so that
writer and reader cannot drift apart.

Refuses to import anything beyond the standard library, and anything else of this package: a trainer may copy
this one file and be a full citizen. `docs/job-contract.md` tells it as a story.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import math
import os
import signal
import stat
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

FORMAT: Final = 1

# --- environment, all set by the supervisor -----------------------------------------------------------------
ENV_PREFIX: Final = "GPUHOST_WATCHDOG_"
ENV_RUN_ID: Final = ENV_PREFIX + "RUN_ID"  # this incarnation of the job
ENV_JOB: Final = ENV_PREFIX + "JOB"  # the job's name, for people
ENV_BEAT_FILE: Final = ENV_PREFIX + "BEAT_FILE"
ENV_ACK_FILE: Final = ENV_PREFIX + "ACK_FILE"
ENV_FAILURE_FILE: Final = ENV_PREFIX + "FAILURE_FILE"
ENV_CHECKPOINTS: Final = ENV_PREFIX + "CHECKPOINTS"  # the folder that is the job's identity
ENV_RESUME: Final = ENV_PREFIX + "RESUME"  # "fresh" or "require"
ENV_RESUME_MANIFEST: Final = ENV_PREFIX + "RESUME_MANIFEST"  # path of the manifest to resume from
ENV_RUN_LOCK: Final = ENV_PREFIX + "RUN_LOCK"  # path of the run lock
ENV_RUN_RECORD: Final = ENV_PREFIX + "RUN_RECORD"  # path of the run record, for ranks that start late
ENV_BATCH_HALVINGS: Final = ENV_PREFIX + "BATCH_HALVINGS"  # how often to halve the micro-batch; absent = 0
CONTRACT_ENVIRONMENT: Final = frozenset(
    {
        ENV_RUN_ID,
        ENV_JOB,
        ENV_BEAT_FILE,
        ENV_ACK_FILE,
        ENV_FAILURE_FILE,
        ENV_CHECKPOINTS,
        ENV_RESUME,
        ENV_RESUME_MANIFEST,
        ENV_RUN_LOCK,
        ENV_RUN_RECORD,
        ENV_BATCH_HALVINGS,
    }
)
RESUME_FRESH: Final = "fresh"
RESUME_REQUIRE: Final = "require"

# --- exit codes of a trainer --------------------------------------------------------------------------------
EXIT_FINISHED: Final = 0  # the target step was reached and saved; or drained on request
EXIT_DATA: Final = 65  # the data cannot be used (empty, binary, changed)
EXIT_CHECKPOINT_REFUSED: Final = 66  # the checkpoint it was told to resume from is not what its manifest says
EXIT_DIVERGED: Final = 67  # loss or gradient is not finite, or beyond its limit
EXIT_WRONG_RUN: Final = 68  # this process belongs to a run that is no longer the job's run

# --- where the locks are, seen from a checkpoint folder -----------------------------------------------------
CONTROL_FOLDER: Final = ".gpuhost-watchdog"
RUN_LOCK: Final = "run.lock"
RUN_RECORD: Final = "run.json"
MANIFEST_SUFFIX: Final = ".manifest.json"

BEAT_SIZE_BYTES: Final = 4096
_RECORD_LIMIT_BYTES: Final = 4 * 1024 * 1024
LATE_RANK_PATIENCE_S: Final = 5.0
BATCH_HALVINGS_MOST: Final = 16
PID_MOST: Final = 2**31 - 1


class ContractError(Exception):
    """A beat, manifest, acknowledgement or run record that cannot be what it claims to be."""


# --- phases -------------------------------------------------------------------------------------------------
PHASES: Final = (
    "import",
    "prepare",
    "load",
    "compile",
    "first_step",
    "train",
    "evaluate",
    "save",
    "drain",
    "finished",
)
# From here on a run has taken, or is about to take, a step: the acknowledgement must be there before.
# A drain may come before: SIGTERM while loading.
STEPPING_PHASES: Final = frozenset({"first_step", "train", "evaluate", "finished"})


# --- numbers ------------------------------------------------------------------------------------------------
def encode_number(value: float | None) -> float | str | None:
    """A number as JSON can carry it: non-finite ones become the strings `nan`, `inf`, `-inf`."""
    if value is None or math.isfinite(value):
        return value
    if math.isnan(value):
        return "nan"
    return "inf" if value > 0 else "-inf"


def decode_number(value: object, name: str) -> float | None:
    """Undo `encode_number`. Raises ContractError for anything that is no number."""
    if value is None:
        return None
    if isinstance(value, bool):
        raise ContractError(f"{name} is {value!r}, not a number")
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError as error:  # JSON knows whole numbers of any length
            raise ContractError(f"{name} is a number of {len(str(value))} digits") from error
    if value in ("nan", "inf", "-inf"):
        return float(str(value))
    raise ContractError(f"{name} is {value!r}, not a number")


def _integer(value: object, name: str, *, least: int = 0, most: int = 2**63 - 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ContractError(f"{name} is {str(value)[:40]}, not a whole number from {least} to {most}")
    return value


def _fraction(value: object) -> float | None:
    """A share of a phase; what is none is as good as not said."""
    fraction = decode_number(value, "progress")
    return fraction if fraction is not None and 0 <= fraction <= 1 else None


def _moment(value: object, name: str) -> float:
    seconds = decode_number(value, name)
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        raise ContractError(f"{name} is {value!r}, not a time in seconds")
    return seconds


def _optional_integer(value: object, name: str) -> int | None:
    return None if value is None else _integer(value, name)


def printable(text: str) -> str:
    """The text without lone surrogates (bytes that were no UTF-8), which no file and no terminal takes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value or printable(value) != value:
        raise ContractError(f"{name} is {str(value)[:200]!r}, not a text")
    return value


def _object(raw: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{what} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ContractError(f"{what} is {type(value).__name__}, not an object")
    return value


# --- identity of a process ----------------------------------------------------------------------------------
def start_ticks(pid: int | str = "self", proc: str = "/proc") -> int:
    """Start time of a process in clock ticks since boot (field 22 of `/proc/PID/stat`, see proc(5)).

    Raises OSError when the process is gone.
    """
    with open(f"{proc}/{pid}/stat", "rb") as file:
        data = file.read()
    # comm may hold spaces and parentheses; what follows the last ')' is plain.
    return int(data[data.rindex(b")") + 2 :].split()[19])


# --- beat ---------------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Beat:
    """One sign of progress: made by a finished step or a change of phase, never by a timer.

    `monotonic_s` is CLOCK_MONOTONIC; `start_ticks` with `pid` names the beating process beyond doubt;
    `progress` is a fraction 0..1 of the phase, where the phase has no steps; `checkpoint_step` the last save.
    """

    seq: int
    monotonic_s: float
    run_id: str
    pid: int
    start_ticks: int
    phase: str
    step: int | None = None
    target_step: int | None = None
    tokens: int | None = None
    loss: float | None = None
    gradient_norm: float | None = None
    learning_rate: float | None = None
    checkpoint_step: int | None = None
    progress: float | None = None
    status: str | None = None

    def to_bytes(self) -> bytes:
        """The beat file's content: a JSON line, its CRC-32 as a second line, padded with spaces to 4096 bytes.

        Fixed size, so that it can be overwritten in place: a full disk must not look like a stalled trainer.
        """
        record = dataclasses.asdict(self)
        for name in ("loss", "gradient_norm", "learning_rate", "progress"):
            record[name] = encode_number(record[name])
        if record["status"] is not None:
            record["status"] = record["status"][:200]
        line = json.dumps({"format": FORMAT, **record}, allow_nan=False).encode()
        content = b"%s\n%08x\n" % (line, zlib.crc32(line))
        if len(content) > BEAT_SIZE_BYTES:
            raise ContractError(f"beat of {len(content)} bytes is longer than {BEAT_SIZE_BYTES}")
        return content.ljust(BEAT_SIZE_BYTES)

    @classmethod
    def from_bytes(cls, content: bytes) -> Beat:
        """Read a beat. A second line, where there is one, must be the CRC-32 of the first. Raises ContractError."""
        line, _, rest = content[:BEAT_SIZE_BYTES].partition(b"\n")
        crc = rest.strip(b" \n\0")
        if crc and crc != b"%08x" % zlib.crc32(line):
            raise ContractError("beat is torn: its CRC-32 does not match")
        record = _object(line, "beat")
        phase = _text(record.get("phase"), "phase")
        if phase not in PHASES:
            raise ContractError(f"phase is {phase!r}, not one of {', '.join(PHASES)}")
        status = record.get("status")
        return cls(
            seq=_integer(record.get("seq"), "seq"),
            monotonic_s=_moment(record.get("monotonic_s"), "monotonic_s"),
            run_id=_text(record.get("run_id"), "run_id"),
            pid=_integer(record.get("pid"), "pid", least=1, most=PID_MOST),
            start_ticks=_integer(record.get("start_ticks"), "start_ticks"),
            phase=phase,
            step=_optional_integer(record.get("step"), "step"),
            target_step=_optional_integer(record.get("target_step"), "target_step"),
            tokens=_optional_integer(record.get("tokens"), "tokens"),
            loss=decode_number(record.get("loss"), "loss"),
            gradient_norm=decode_number(record.get("gradient_norm"), "gradient_norm"),
            learning_rate=decode_number(record.get("learning_rate"), "learning_rate"),
            checkpoint_step=_optional_integer(record.get("checkpoint_step"), "checkpoint_step"),
            progress=_fraction(record.get("progress")),
            status=printable(status[:200]) if isinstance(status, str) else None,
        )


# --- files --------------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FileDigest:
    """One file of a checkpoint: `name` relative to the checkpoint folder, size in bytes, sha256 in hex."""

    name: str
    size_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        path = PurePosixPath(self.name)
        if not self.name or path.is_absolute() or ".." in path.parts or "\0" in self.name:
            raise ContractError(f"file name {self.name!r} leaves the checkpoint folder")
        if printable(self.name) != self.name:
            raise ContractError(f"file name {self.name!r} is no text")
        if len(self.sha256) != 64 or set(self.sha256) - set("0123456789abcdef"):
            raise ContractError(f"sha256 of {self.name} is {self.sha256!r}, not 64 hex digits")


def combined_digest(files: Sequence[FileDigest]) -> str:
    """One digest for a set of files: the file's own sha256 when there is one, else that of all names and digests."""
    if len(files) == 1:
        return files[0].sha256
    import hashlib  # as below: it loads OpenSSL, 2 ms that only who hashes should pay

    lines = sorted(f"{file.name}\0{file.sha256}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def digest_file(path: Path, name: str | None = None) -> FileDigest:
    """Size and sha256 of the bytes of `path`, read in 1 MiB blocks. Raises OSError."""
    import hashlib

    total = 0
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1024 * 1024):
            digest.update(block)
            total += len(block)
    return FileDigest(name=name or path.name, size_bytes=total, sha256=digest.hexdigest())


def sync_folder(folder: Path) -> None:
    """fsync a folder, so that a rename inside it survives a power cut. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class _HashingFile:
    """A write-through file object that hashes what passes; it cannot seek, which torch.save accepts."""

    def __init__(self, file: IO[bytes]) -> None:
        import hashlib

        self._file = file
        self.digest = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._file.write(view)
        self.digest.update(view)
        self.size_bytes += len(view)
        return len(view)

    def flush(self) -> None:
        self._file.flush()


def write_durably(path: Path, write: Callable[[IO[bytes]], object]) -> FileDigest:
    """Write `path` so that it is either the old file or the whole new one, whatever happens in between.

    Temporary file in the same folder, fsync, replace, fsync of the folder. Returns the digest of the bytes that
    were handed to the file. On any error the temporary file is removed and `path` is as it was. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            hashing = _HashingFile(file)
            write(hashing)  # type: ignore[arg-type]  # a writer needs write() and flush() only
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
    sync_folder(path.parent)
    return FileDigest(name=path.name, size_bytes=hashing.size_bytes, sha256=hashing.digest.hexdigest())


def write_json_durably(path: Path, record: Mapping[str, object]) -> None:
    """`write_durably` for one JSON object. Raises OSError; ValueError for a number that JSON cannot carry."""
    content = (json.dumps(record, indent=1, allow_nan=False) + "\n").encode()
    write_durably(path, lambda file: file.write(content))


def open_regular(path: Path) -> IO[bytes]:
    """Open for reading what is a regular file. A named pipe in its place would make the reader wait for ever.

    Raises OSError; EINVAL for what is no regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return os.fdopen(fd, "rb")


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read one JSON object of at most 4 MiB. Raises OSError, ContractError."""
    with open_regular(path) as file:
        content = file.read(_RECORD_LIMIT_BYTES + 1)
    if len(content) > _RECORD_LIMIT_BYTES:
        raise ContractError(f"{what} {path} is longer than {_RECORD_LIMIT_BYTES} bytes")
    try:
        return _object(content, what)
    except ContractError as error:
        raise ContractError(f"{path}: {error}") from error


def _files_from(value: object) -> tuple[FileDigest, ...]:
    if not isinstance(value, list) or not value:
        raise ContractError(f"files is {value!r}, not a list of at least one file")
    files = []
    for entry in value:
        if not isinstance(entry, dict):
            raise ContractError(f"files holds {entry!r}, not an object")
        files.append(
            FileDigest(
                name=_text(entry.get("name"), "file name"),
                size_bytes=_integer(entry.get("size_bytes"), "size_bytes"),
                sha256=_text(entry.get("sha256"), "sha256"),
            )
        )
    return tuple(files)


# --- manifest -----------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What makes a set of files a checkpoint. Written last, beside its files, as `<anything>.manifest.json`."""

    step: int
    files: tuple[FileDigest, ...]
    target_step: int | None = None
    tokens: int | None = None
    run_id: str | None = None
    loss: float | None = None
    created_s: float | None = None

    @property
    def digest(self) -> str:
        return combined_digest(self.files)

    def to_record(self) -> dict[str, object]:
        record = dataclasses.asdict(self)
        record["loss"] = encode_number(self.loss)
        record["files"] = [dataclasses.asdict(file) for file in self.files]
        return {"format": FORMAT, **record}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Manifest:
        """Raises ContractError."""
        if record.get("format") != FORMAT:
            raise ContractError(f"manifest format is {record.get('format')!r}, this program reads {FORMAT}")
        run_id = record.get("run_id")
        return cls(
            step=_integer(record.get("step"), "step"),
            files=_files_from(record.get("files")),
            target_step=_optional_integer(record.get("target_step"), "target_step"),
            tokens=_optional_integer(record.get("tokens"), "tokens"),
            run_id=run_id if isinstance(run_id, str) else None,
            loss=decode_number(record.get("loss"), "loss"),
            created_s=decode_number(record.get("created_s"), "created_s"),
        )

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Raises OSError, ContractError."""
        return cls.from_record(read_json(path, "manifest"))


# --- acknowledgement ----------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Acknowledgement:
    """What a run really restored: `files` are digests of the bytes that it loaded, never copied from a manifest.

    A fresh start says so: `fresh` true, step 0, no files.
    """

    run_id: str
    pid: int
    fresh: bool
    step: int
    files: tuple[FileDigest, ...] = ()

    @property
    def digest(self) -> str | None:
        return combined_digest(self.files) if self.files else None

    def to_record(self) -> dict[str, object]:
        record = dataclasses.asdict(self)
        record["files"] = [dataclasses.asdict(file) for file in self.files]
        return {"format": FORMAT, **record}

    @classmethod
    def read(cls, path: Path) -> Acknowledgement:
        """Raises OSError, ContractError."""
        record = read_json(path, "acknowledgement")
        fresh = record.get("fresh")
        if not isinstance(fresh, bool):
            raise ContractError(f"{path}: fresh is {fresh!r}, not true or false")
        return cls(
            run_id=_text(record.get("run_id"), "run_id"),
            pid=_integer(record.get("pid"), "pid", least=1, most=PID_MOST),
            fresh=fresh,
            step=_integer(record.get("step"), "step"),
            files=() if fresh else _files_from(record.get("files")),
        )


# --- failure ------------------------------------------------------------------------------------------------
def error_chain(error: BaseException) -> Iterator[BaseException]:
    """The error and everything behind it: a shortage of memory likes to hide in `__cause__` or `__context__`."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        current = todo.pop(0)
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        todo += [current.__cause__, current.__context__]


def failure_record(error: BaseException) -> dict[str, object]:
    """What is kept of an exception: class, message and errno of each link, and the last lines of its traceback."""
    chain = [
        {"class": type(link).__name__, "message": str(link)[:2000], "errno": getattr(link, "errno", None)}
        for link in error_chain(error)
    ]
    for link in chain:
        if not isinstance(link["errno"], int):
            link["errno"] = None
    text = "".join(traceback.format_exception(error))
    return {"format": FORMAT, "chain": chain[:20], "traceback": text[-8000:]}


# --- the trainer's side -------------------------------------------------------------------------------------
class Run:
    """The trainer's hold on the contract. Without a supervisor everything is accepted and nothing is written.

    Nothing here raises because the disk is full or the state folder is gone: a beat that could not be written is
    counted in `beats_dropped` and the training goes on.
    """

    def __init__(
        self,
        *,
        run_id: str | None,
        checkpoints: Path | None = None,
        resume: str | None = None,
        resume_manifest: Path | None = None,
        beat_file: Path | None = None,
        ack_file: Path | None = None,
        failure_file: Path | None = None,
        batch_halvings: int = 0,
    ) -> None:
        self.run_id = run_id
        self.checkpoints = checkpoints
        self.resume = resume
        self.resume_manifest = resume_manifest
        self.batch_halvings = batch_halvings  # of the micro-batch, see `shrunk_batch`
        self.draining = False
        self.beats_dropped = 0
        self._beat_file = beat_file
        self._ack_file = ack_file
        self._failure_file = failure_file
        self._beat_fd: int | None = None
        self._seq = 0
        self._last: dict[str, Any] = {}
        self._start_ticks = start_ticks()
        self._lock_fd: int | None = None

    @property
    def supervised(self) -> bool:
        return self.run_id is not None

    @property
    def must_resume(self) -> bool:
        return self.resume == RESUME_REQUIRE

    def beat(self, phase: str, **fields: Any) -> None:
        """Say that a step is done or a phase has begun. `fields` as in `Beat`; those left out keep their last value.

        Costs about 10 us, never waits, never raises for the state of the disk.
        """
        if phase not in PHASES:
            raise ContractError(f"phase is {phase!r}, not one of {', '.join(PHASES)}")
        if phase != self._last.get("phase"):
            self._last.pop("progress", None)
            self._last.pop("status", None)
        self._last.update(fields, phase=phase)
        if self._beat_file is None or self.run_id is None:
            return
        self._seq += 1
        beat = Beat(
            seq=self._seq,
            monotonic_s=time.monotonic(),
            run_id=self.run_id,
            pid=os.getpid(),
            start_ticks=self._start_ticks,
            **self._last,
        )
        try:
            if self._beat_fd is None:
                self._beat_fd = os.open(self._beat_file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.pwrite(self._beat_fd, beat.to_bytes(), 0)
        except OSError:
            self.beats_dropped += 1

    def acknowledge(self, *, step: int, files: Sequence[FileDigest] = (), fresh: bool = False) -> None:
        """Say what was restored, before the first step. `files`: digests of the bytes really loaded.

        Raises OSError: a run that cannot say what it restored must not go on.
        """
        if self._ack_file is None or self.run_id is None:
            return
        ack = Acknowledgement(run_id=self.run_id, pid=os.getpid(), fresh=fresh, step=step, files=tuple(files))
        write_json_durably(self._ack_file, ack.to_record())

    def publish(self, manifest_path: Path, manifest: Manifest) -> None:
        """Write the manifest: from now on its files are a candidate checkpoint. Raises OSError."""
        write_json_durably(manifest_path, manifest.to_record())

    def fail(self, error: BaseException) -> None:
        """Leave `failure.json` for the supervisor; said on stderr when even that cannot be written."""
        if self._failure_file is None:
            return
        try:
            write_json_durably(self._failure_file, failure_record(error))
        except (OSError, ValueError) as why:
            with contextlib.suppress(OSError):
                print(f"could not write {self._failure_file}: {why}", file=sys.stderr)

    def drain_on_sigterm(self) -> None:
        """From now on SIGTERM sets `draining`: finish the step, save, exit 0."""

        def on_term(_signum: int, _frame: object) -> None:
            self.draining = True

        signal.signal(signal.SIGTERM, on_term)

    def hold_lock(self, fd: int) -> None:
        """Keep a descriptor of the run lock for the life of this process."""
        self._lock_fd = fd


def shrunk_batch(micro_batch: int, accumulation: int, halvings: int) -> tuple[int, int]:
    """(micro-batch, accumulation) after `halvings` halvings of the micro-batch: as many samples a step as before.

    Stops at a micro-batch of 1, which cannot be halved. Raises ContractError for one that is odd on the way there.
    """
    if micro_batch < 1 or accumulation < 1 or halvings < 0:
        raise ContractError(
            f"micro-batch {micro_batch} x accumulation {accumulation}, halved {halvings} times, is none"
        )
    micro, steps = micro_batch, accumulation
    for _ in range(halvings):
        if micro == 1:
            break
        if micro % 2:
            raise ContractError(
                f"a micro-batch of {micro_batch} cannot be halved {halvings} times: {micro} is odd; choose one that "
                "two divides as often as [job] shrink_batch allows, or allow less"
            )
        micro, steps = micro // 2, steps * 2
    return micro, steps


def _halvings_in(environ: Mapping[str, str]) -> int:
    """Raises ContractError: to train with the batch that was too large would be the same failure again."""
    text = environ.get(ENV_BATCH_HALVINGS) or "0"
    if not (text.isascii() and text.isdigit() and len(text) <= 2 and int(text) <= BATCH_HALVINGS_MOST):
        raise ContractError(
            f"{ENV_BATCH_HALVINGS} is {text[:40]!r}, not a whole number from 0 to {BATCH_HALVINGS_MOST}"
        )
    return int(text)


class WrongRunError(ContractError):
    """The run lock or the run record says that another run of this job is the living one."""


def _share_run_lock(path: Path, patience_s: float) -> int:
    """A shared hold on the run lock, without blocking, tried for up to `patience_s` seconds."""
    deadline = time.monotonic() + patience_s
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return fd
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES) or time.monotonic() >= deadline:
                os.close(fd)
                raise WrongRunError(f"{path} is held exclusively: another run is being started") from error
            time.sleep(0.05)


def handles(number: signal.Signals, pid: int | str = "self", proc: str = "/proc") -> bool:
    """Whether the process has a handler for the signal, whoever set it (SigCgt, see proc(5)). Raises OSError."""
    return _has_bit("SigCgt", number, pid, proc)


def _has_bit(name: str, number: signal.Signals, pid: int | str, proc: str) -> bool:
    with open(f"{proc}/{pid}/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith(f"{name}:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def stacks_on_sigusr2() -> None:
    """From now on SIGUSR2 makes this process write to its standard error where each of its threads stands.

    Works while another thread, or a library, holds the GIL. Left alone where the program catches or ignores that
    signal for a purpose of its own. The supervisor sends it before it ends a run for a stall.
    """
    with contextlib.suppress(OSError, ImportError, AttributeError, RuntimeError, ValueError):
        if handles(signal.SIGUSR2) or _has_bit("SigIgn", signal.SIGUSR2, "self", "/proc"):
            return
        import faulthandler  # in CPython; where it is missing the run can be supervised all the same

        # By number: whatever became of `sys.stderr`, that is where a supervisor has its log.
        faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)


def join(environ: Mapping[str, str] | None = None, *, patience_s: float = LATE_RANK_PATIENCE_S) -> Run:
    """Enter the run that the environment names; without one, an unsupervised `Run`.

    Takes a share of the run lock and compares the run id in the run record with its own, so that a rank which
    starts late never joins a run that is over. SIGUSR2 becomes a question for its stacks, unless the program has a
    use for it. Raises WrongRunError (exit with EXIT_WRONG_RUN), ContractError, OSError.
    """
    env = os.environ if environ is None else environ
    run_id = env.get(ENV_RUN_ID)
    if not run_id:
        return Run(run_id=None)

    def path(name: str) -> Path | None:
        value = env.get(name)
        return Path(value) if value else None

    run = Run(
        run_id=run_id,
        checkpoints=path(ENV_CHECKPOINTS),
        resume=env.get(ENV_RESUME),
        resume_manifest=path(ENV_RESUME_MANIFEST),
        beat_file=path(ENV_BEAT_FILE),
        ack_file=path(ENV_ACK_FILE),
        failure_file=path(ENV_FAILURE_FILE),
        batch_halvings=_halvings_in(env),
    )
    lock, record = path(ENV_RUN_LOCK), path(ENV_RUN_RECORD)
    if lock is not None and record is not None:
        run.hold_lock(_share_run_lock(lock, patience_s))
        living = read_json(record, "run record").get("run_id")
        if living != run_id:
            raise WrongRunError(f"this process belongs to run {run_id}, the job's run is {living}")
    stacks_on_sigusr2()
    return run


def lock_by_hand(checkpoints: Path) -> int:
    """The run lock for a trainer that a person starts without a supervisor: exclusive, at once or not at all.

    Returns the descriptor; keep it open as long as the training lives. Raises WrongRunError, OSError.
    """
    control = checkpoints / CONTROL_FOLDER
    control.mkdir(parents=True, exist_ok=True)
    path = control / RUN_LOCK
    fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise WrongRunError(f"{path} is held: a run of this job is alive (watchdog status)") from error
    return fd
