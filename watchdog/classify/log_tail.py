"""What the end of a trainer's output says of its death. Pure; the patterns are data, in one table.

Responsible for finding the exception that ended a Python program among what launchers, other ranks and data workers
print around it, for the place in the code where it happened, and for what its words mean, whoever's trainer it is.
Refuses to weigh that against other evidence (ends.py), and to raise: any text may come.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from watchdog.core.causes import Cause

_LOOKED_AT = 2000  # of one message
_RECENT_LINES = 150  # an exception that was printed before that was survived; torchrun's own report takes 60
_NATIVE_LINES = 20  # what a C++ runtime, a shell or a batch system prints last


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """One exception of a chain. `kind`: its class without its module."""

    kind: str
    message: str
    number: int | None = None  # errno


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """The exception that ended the program, the outermost first, and where it was raised: `train.py:12 in step`.

    `inside`: the file of the innermost frame, which may be a library's.
    """

    chain: tuple[Link, ...]
    place: str | None = None
    inside: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Meaning:
    """`words` say what happened, `line` is the text that says it. `likely`: the same text may mean something else."""

    cause: Cause
    words: str
    line: str
    likely: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """`form` is searched for in `Class: message` of each link of a chain, and in the last lines."""

    cause: Cause
    words: str
    form: str
    likely: bool = False


def _pattern(cause: Cause, words: str, form: str, *, likely: bool = False) -> Pattern:
    return Pattern(cause=cause, words=words, form=form, likely=likely)


_DRIVER, _NO_MEMORY, _STORAGE = "the driver, or the device, is gone", "host memory ran out", "the storage failed"
# Of a process of the run that is no more; who ended it, its parent does not know (ends.py asks the kernel).
WORKER_KILLED, WORKER_GONE = "a worker process was killed", "a worker process ended unexpectedly"

# The first that fits decides, so the special stands before the general.
PATTERNS: tuple[Pattern, ...] = (
    # Device memory. JAX and CuPy beside torch; cuBLAS says so when it cannot have its workspace.
    _pattern(
        Cause.CUDA_OUT_OF_MEMORY,
        "device memory ran out",
        r"CUDA out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
        r"|HIP out of memory|C(?:UBLAS|UDNN|USOLVER)_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: Out of memory"
        r"|OOM when allocating tensor|(?:cuda|gpu)\S*OutOfMemoryError",
    ),
    # The driver, before the general form of a CUDA error.
    _pattern(
        Cause.DRIVER_GONE,
        _DRIVER,
        r"Found no NVIDIA driver|No CUDA GPUs are available|no CUDA-capable device is detected"
        r"|CUDA driver version is insufficient for CUDA runtime version|NVIDIA driver on your system is too old"
        r"|Driver/library version mismatch|CUDA unknown error - this may be due to an incorrectly set up environment"
        r"|forward compatibility was attempted on non supported HW|devices?\(?s?\)? is/are busy or unavailable"
        r"|system not yet initialized|CUDA error: (?:driver shutting down|initialization error)"
        r"|CUDA_ERROR_NO_DEVICE|couldn't communicate with the NVIDIA driver",
    ),
    _pattern(
        Cause.DEVICE_FAULT,
        "the device is faulty",
        r"uncorrectable (?:ECC|NVLink) error|CUDA error: (?:hardware stack error|unknown error)|GPU is lost"
        r"|CUDA_ERROR_ECC_UNCORRECTABLE|cudaErrorECCUncorrectable",
    ),
    _pattern(
        Cause.CODE_ERROR,
        "an index or value beyond its range on the device",
        r"CUDA error: device-side assert triggered",
    ),
    _pattern(
        Cause.CUDA_ERROR,
        "CUDA failed",
        r"CUDA error: |CUDA driver error: |C(?:UBLAS|UDNN|USOLVER|USPARSE|UFFT)_STATUS_\w+|cuDNN error: "
        r"|unhandled cuda error|CUDA_ERROR_[A-Z_]+|cudaError[A-Z]\w+|HIP error: ",
    ),
    # Host memory. /dev/shm is memory, although its words are those of a disk.
    _pattern(
        Cause.HOST_MEMORY,
        "shared memory (/dev/shm) ran out",
        r"shared memory\(shm\)|insufficient shared memory|out of shared memory"
        r"|unable to (?:write to|resize|open) .{0,30}</?torch_\S+>.*(?:No space left|Cannot allocate)",
    ),
    _pattern(
        Cause.HOST_MEMORY,
        _NO_MEMORY,
        r"[Cc]an(?:'t|not) allocate memory|\bMemoryError\b|\bstd::bad_alloc\b|Unable to allocate \S+ [KMGTP]?i?B for an"
        r"|DefaultCPUAllocator: not enough memory|OutOfMemoryError: Java heap",
    ),
    _pattern(Cause.HOST_MEMORY, "no thread or process could be started", r"can't start new thread", likely=True),
    # An ENOMEM in `readinto` of a buffered file: torch goes on to read from the file that it closed meanwhile.
    _pattern(Cause.HOST_MEMORY, _NO_MEMORY, r"^ValueError: read of closed file", likely=True),
    _pattern(
        Cause.HOST_MEMORY,
        _NO_MEMORY,
        r"^SystemError: .*read(?:into)?\b.*returned (?:a result with an exception set|NULL without setting)",
        likely=True,
    ),
    _pattern(Cause.HOST_MEMORY, _NO_MEMORY, r"WinError 1455\b|paging file is too small"),
    _pattern(Cause.OOM_KILL, "the batch system saw a kill for memory", r"[Dd]etected \d+ oom[-_ ]kill event"),
    _pattern(Cause.OOM_KILL, WORKER_KILLED, r"DataLoader worker .*is killed by signal: Killed", likely=True),
    _pattern(
        Cause.OOM_KILL,
        WORKER_GONE,
        r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) exited unexpectedly|^BrokenProcessPool\b"
        r"|subprocesses has abruptly died during map operation",
        likely=True,
    ),
    _pattern(
        Cause.HOST_MEMORY,
        "shared memory (/dev/shm) ran out",
        r"DataLoader worker .*is killed by signal: Bus error",
        likely=True,
    ),
    _pattern(
        Cause.KILLED,
        WORKER_KILLED,
        r"DataLoader worker .*is killed by signal: (?:Terminated|Hangup|Interrupt|Quit)",
        likely=True,
    ),
    _pattern(Cause.SIGNALLED, "a worker process crashed", r"DataLoader worker .*is killed by signal: "),
    # Disk. torch.save by name has no errno to tell.
    _pattern(
        Cause.DISK_FULL,
        "the disk is full",
        r"No space left on device|[Dd]isk quota exceeded|not enough space on the disk",
    ),
    _pattern(
        Cause.STORAGE_FAILED,
        _STORAGE,
        r"\bInput/output error|\bRead-only file system|\bStale file handle|Transport endpoint is not connected",
    ),
    _pattern(
        Cause.DISK_FULL,
        "a checkpoint could not be written",
        r"PytorchStreamWriter failed writing|inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d+"
        r"|basic_ios::clear: iostream error|\b\d+ requested and \d+ written",
        likely=True,
    ),
    # Time.
    _pattern(
        Cause.WALL_REACHED,
        "its time was over",
        r"DUE TO TIME LIMIT|PBS: job killed: walltime|TERM_RUNLIMIT|CPU time limit exceeded",
    ),
    # Numbers.
    _pattern(
        Cause.NUMERIC,
        "loss or gradient is not finite",
        r"returned nan values in its \d+th output|is non-finite, so it cannot be clipped|^FloatingPointError: "
        r"|The loss returned in `training_step` is (?:nan|inf)|[Ll]oss (?:is|became|=|was) (?:nan|inf|NaN|not finite)"
        r"|(?:NaN|Inf|[Nn]on-?finite) (?:loss|gradient)s?\b|[Cc]urrent loss scale already at minimum",
    ),
    # Checkpoints.
    _pattern(
        Cause.CHECKPOINT_REFUSED,
        "the checkpoint could not be loaded",
        r"PytorchStreamReader failed|Weights only load failed|Cannot use ``?weights_only=True``? with files saved in"
        r"|Error\(s\) in loading state_dict for|^SafetensorError: |invalid magic number; corrupt file"
        r"|unexpected EOF, expected \d+ more bytes|loaded state dict (?:has|contains) ",
    ),
    # Data.
    _pattern(
        Cause.DATA_ERROR,
        "the data cannot be used",
        r"^(?:Unicode(?:Decode|Encode)Error|JSONDecodeError|UnidentifiedImageError|DatasetGenerationError"
        r"|DatasetNotFoundError|EmptyDatasetError|DataFilesNotFoundError|ArrowInvalid|BadZipFile|BadGzipFile)\b"
        r"|^ReadError: (?:unexpected end of data|bad checksum|not a gzip)",
    ),
    _pattern(
        Cause.EXITED,
        "a connection failed",
        r"Connection (?:closed|reset) by peer|Connection (?:refused|timed out)|Read timed out|NCCL (?:error|timeout)"
        r"|Watchdog caught collective operation timeout|Temporary failure in name resolution",
    ),
    # A main script that cannot be compiled has no traceback.
    _pattern(Cause.CODE_ERROR, "the program cannot be compiled", r"^(?:Syntax|Indentation|Tab)Error: "),
    # What argparse, a shell and Python itself say of a command that cannot be right.
    _pattern(
        Cause.CODE_ERROR,
        "the command line is refused",
        r"^\S+: error: (?:the following arguments are required|unrecognized arguments|argument |ambiguous option)"
        r"|^Error: (?:No such (?:option|command)|Missing (?:option|argument|parameter)|Invalid value for)"
        r"|can't open file '.*': \[Errno 2\]|: No module named \S+$",
    ),
)

# Connections and what they carry come and go: the same error twice is no proof of anything. So do the words below.
_COMES_AND_GOES = frozenset(
    {
        *("ConnectionError", "ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError", "timeout"),
        *("BrokenPipeError", "TimeoutError", "Timeout", "ReadTimeout", "ConnectTimeout", "ConnectTimeoutError"),
        *("HTTPError", "HfHubHTTPError", "URLError", "gaierror", "SSLError", "ProtocolError", "ChunkedEncodingError"),
        *("MaxRetryError", "ReadTimeoutError", "DistNetworkError", "DistBackendError", "DistStoreError", "RemoteError"),
        *("OSError", "IOError", "BlockingIOError", "InterruptedError", "KeyboardInterrupt", "SystemExit"),
        *("LocalEntryNotFoundError", "ProxyError", "RemoteDisconnected", "IncompleteRead"),
    }
)
# What a launcher raises when what it launched has failed: the reason stands further up.
_OF_LAUNCHERS = frozenset(
    {"ChildFailedError", "CalledProcessError", "ProcessRaisedException", "ProcessExitedException"}
)

_RANK = re.compile(r"^(?:\[(?:default\d+|rank\d+)\]:|\[\d+\]:) ?")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_BEGIN = re.compile(r"^(?:Original |Exception Group )?Traceback \(most recent call last\):$")
_LINKED = re.compile(
    r"^(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):$"
)
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]{1,1000})", line (?P<line>\d{1,9})(?:, in (?P<name>\S{1,200}))?')
_EXCEPTION = re.compile(r"^(?P<kind>[A-Za-z_][\w.]{0,200})(?:: ?(?P<message>.*))?$")
_ERRNO = re.compile(r"^\[Errno (\d{1,4})\]")
_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|/lib/python\d|\\[Ll]ib\\(?!site)|^<")
_GROUPED = re.compile(r"^ +(?:\| |\+ (?=Exception Group ))")  # what Python draws around the members of a group
_WORKER = re.compile(r"\bpid\(?s?\)? (\d[\d, ]{0,400})\) (?:exited unexpectedly|is killed by signal)")
_SIGNALLED = re.compile(r"Signal (\d{1,2}) \(SIG\w+\) received by PID (\d{1,10})")


def plain_lines(text: str) -> list[str]:
    """Lines as a person would read them: no escapes, no rank in front, of a redrawn bar only its last state."""
    lines = (_ESCAPES.sub("", line).rstrip().rpartition("\r")[2] for line in text.replace("\0", "").split("\n"))
    plain = [_RANK.sub("", line[:_LOOKED_AT]) for line in lines]
    return [_GROUPED.sub("", line) for line in plain] if "Exception Group Traceback" in text else plain


def failure_in(text: str) -> Failure | None:
    """The exception that the end of this text tells of; None when there is none, or only one long past."""
    lines = plain_lines(text)
    while lines and not lines[-1]:
        lines.pop()
    found: Failure | None = None
    chain: list[Link] = []
    place: str | None = None
    linked = False  # the next exception has the last one behind it
    index = max(0, len(lines) - _RECENT_LINES - 400)  # a traceback may begin long before it ends
    while index < len(lines):
        line = lines[index]
        if _LINKED.match(line):
            linked = True
        elif _BEGIN.match(line):
            frames, link, index = _block(lines, index + 1)
            if link is not None:
                # A data worker's own traceback stands inside the message of what was raised for it.
                inner = line.startswith("Original")
                chain = [*chain, link] if inner else [link, *chain] if linked else [link]
                place = _place(frames) or place
                recent = index >= len(lines) - _RECENT_LINES
                if recent and not (link.kind in _OF_LAUNCHERS and found is not None):
                    inside = frames[-1]["file"] if frames else ""
                    found = Failure(chain=tuple(chain[:20]), place=place, inside=inside)
                linked = False
                index -= 1  # the line after the exception may begin the next
        index += 1
    return found


def failure_of_record(chain: Iterable[Link], traceback: str) -> Failure:
    """As the contract's failure record tells it; the place from its traceback."""
    links = tuple(chain)
    told = failure_in(traceback)
    if told is None:
        return Failure(chain=links)
    return dataclasses.replace(told, chain=links or told.chain)


def _block(lines: list[str], index: int) -> tuple[list[re.Match[str]], Link | None, int]:
    """(frames, exception, index behind it) of the traceback that begins at `index`."""
    frames: list[re.Match[str]] = []
    while index < len(lines):
        line = lines[index]
        if frame := _FRAME.match(line):
            frames.append(frame)
        elif line and not line[0].isspace():
            break
        index += 1
    if index >= len(lines) or not (match := _EXCEPTION.match(lines[index])):
        return frames, None, index
    message = [match["message"] or ""]
    index += 1
    while index < len(lines) and not (_BEGIN.match(lines[index]) or _LINKED.match(lines[index])) and len(message) < 6:
        message.append(lines[index])
        index += 1
    return frames, make_link(match["kind"], "\n".join(message).strip()), index


def make_link(kind: str, message: str, number: int | None = None) -> Link:
    """A link; an errno that is told in its message alone is found there."""
    told = _ERRNO.match(message)
    number = number if number is not None or told is None else int(told[1])
    return Link(kind=kind.rpartition(".")[2], message=message[:_LOOKED_AT], number=number)


def _place(frames: list[re.Match[str]]) -> str | None:
    """The innermost frame that is of no library, else the innermost."""
    own = [frame for frame in frames if not _LIBRARY.search(frame["file"])]
    if not frames:
        return None
    frame = (own or frames)[-1]
    return f"{frame['file']}:{frame['line']}" + (f" in {frame['name']}" if frame["name"] else "")


EIO, ENOMEM, ENOSPC, EROFS, ESTALE, EDQUOT = 5, 12, 28, 30, 116, 122
_BY_NUMBER = {
    ENOMEM: (Cause.HOST_MEMORY, _NO_MEMORY),
    ENOSPC: (Cause.DISK_FULL, "the disk is full"),
    EDQUOT: (Cause.DISK_FULL, "the disk quota is used up"),
    EIO: (Cause.STORAGE_FAILED, _STORAGE),
    EROFS: (Cause.STORAGE_FAILED, "the file system is read-only"),
    ESTALE: (Cause.STORAGE_FAILED, "the network file system lost the file"),
}


def meaning_of(failure: Failure) -> Meaning:
    """What an exception means: by errno, then by its words, of any link; else it is the program's own error."""
    texts = [_text(link) for link in failure.chain]
    shared = any("torch_" in text and "shm" in text for text in texts)  # ENOSPC of /dev/shm is memory
    for link, text in zip(failure.chain, texts, strict=True):
        if link.number in _BY_NUMBER and not shared:
            cause, words = _BY_NUMBER[link.number]
            return Meaning(cause=cause, words=words, line=_first_line(text))
    told = _look_up(texts)
    if told is not None:
        return told
    outer = failure.chain[0]
    line = _first_line(texts[0])
    if outer.kind == "EOFError" and re.search(r"/torch/|pickle", failure.inside):
        return Meaning(cause=Cause.CHECKPOINT_REFUSED, words="the checkpoint is empty", line=line, likely=True)
    if outer.kind in ("EOFError", "ConnectionResetError") and re.search(r"[/\\]multiprocessing[/\\]", failure.inside):
        return Meaning(cause=Cause.OOM_KILL, words=WORKER_GONE, line=line, likely=True)
    if outer.kind == "KeyboardInterrupt":
        return Meaning(cause=Cause.KILLED, words="it was interrupted", line=line)
    if outer.kind in _COMES_AND_GOES or outer.kind in _OF_LAUNCHERS:
        return Meaning(cause=Cause.EXITED, words="", line=line)
    return Meaning(cause=Cause.CODE_ERROR, words="the program failed", line=line)


def meaning_of_lines(text: str) -> Meaning | None:
    """What the last lines say where there is no exception: of a C++ runtime, a shell, a batch system."""
    return _look_up([line for line in plain_lines(text) if line.strip()][-_NATIVE_LINES:])


def _look_up(texts: list[str]) -> Meaning | None:
    for pattern in PATTERNS:
        for text in texts:
            match = re.search(pattern.form, text)  # which keeps what it compiled
            if match is not None:
                line = next((line for line in text.split("\n") if re.search(pattern.form, line)), text)
                return Meaning(cause=pattern.cause, words=pattern.words, line=_short(line), likely=pattern.likely)
    return None


def signalled_worker(text: str) -> tuple[int, int] | None:
    """(signal, pid) of the worker whose death ended a launcher (torchrun), None where it does not say so."""
    found = _SIGNALLED.findall("\n".join(plain_lines(text)[-_NATIVE_LINES:]))
    return (int(found[-1][0]), int(found[-1][1])) if found else None


def worker_pids(text: str) -> frozenset[int]:
    """The workers of which the end of this text says that they are gone."""
    found = _WORKER.findall("\n".join(plain_lines(text)[-_RECENT_LINES:]))
    return frozenset(int(pid) for pids in found for pid in pids.split(",") if pid.strip().isdigit())


def _text(link: Link) -> str:
    return f"{link.kind}: {link.message}" if link.message else link.kind


def first_line(link: Link) -> str:
    """As Python prints it: `TypeError: can only concatenate ...`."""
    return _first_line(_text(link))


def _first_line(text: str) -> str:
    return _short(text.split("\n", 1)[0])


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= 300 else text[:299] + "…"
