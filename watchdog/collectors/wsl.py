"""Windows Subsystem for Linux: which version, and what its two settings files say.

Responsible for telling WSL by its kernel's name, for `/etc/wsl.conf`, and for the `.wslconfig` in a Windows profile.
That one lies on a Windows drive, where any access may hang for ever and a reader that comes again and again can wedge
the drive: a disposable child reads it, once. It takes effect only when WSL starts, so once is enough; after a failure
it is asked for again ten minutes later.
Refuses to write either file, and to call a file that could not be read an empty one.

Known limits: WSL passes over a line that it does not understand, we call the file unknown, since what the person meant
by it is not in force. Without USERPROFILE (a service has none) the newest .wslconfig of drive C counts.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping

from watchdog.clock import Clock
from watchdog.collectors.child import DisposableChild
from watchdog.collectors.roots import Roots
from watchdog.contract import printable
from watchdog.core.facts import Absent, Fact, Known, Unknown, Wsl

_AGAIN_S = 600.0
_LIMIT_BYTES = 64 * 1024
_WINDOWS_PATH = re.compile(r"([A-Za-z]):[\\/](.*)")
_SECTION = re.compile(r"\[([A-Za-z][A-Za-z0-9]*)\]")
_KEY = re.compile(r"([A-Za-z][A-Za-z0-9]*)[ \t]*=[ \t]*(.*)")
_PIECE = re.compile(r'\\(.)|(")|(#)|([^\\"#]+)|(\\)')

# Arguments: seconds, bytes, the Users folder, the profile ("": every one below Users). Its first lines are
# `child.end_after`, written out because a child that imports nothing of ours is up in 10 ms. A profile whose folder may
# not be listed is another person's, and no reason to be unsure of ours.
_CHILD = """
import json, os, signal, sys
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
limit, users, profile = int(sys.argv[2]), sys.argv[3], sys.argv[4]
def look():
    profiles, found, hidden = [profile], [], 0
    if not profile:
        profiles = [os.path.join(users, name) for name in os.listdir(users)]
    for folder in profiles:
        if not profile and not os.path.isdir(folder):
            continue
        try:
            names = os.listdir(folder)
        except PermissionError:
            hidden += 1
            if profile:
                raise
            continue
        for name in names:
            if name.lower() == '.wslconfig':
                path = os.path.join(folder, name)
                found.append((os.stat(path).st_mtime, path))
    if not found:
        if profiles and hidden == len(profiles):
            return {'error': 'no profile below %s may be looked into' % users}
        return {'path': '', 'hex': ''}
    path = max(found)[1]
    with open(path, 'rb') as file:
        return {'path': path, 'hex': file.read(limit).hex()}
try:
    answer = look()
except OSError as error:
    answer = {'error': '%s: %s' % (error.filename, error.strerror)}
print(json.dumps(answer))
"""


def wsl_version(release: str, version: str) -> int | None:
    """1 or 2 by `/proc/sys/kernel/osrelease` and `/proc/version`, None for any other kernel.

    WSL 2 says `5.15.167.4-microsoft-standard-WSL2`, WSL 1 `4.4.0-19041-Microsoft`. The builder's name in the version
    text alone proves nothing: Microsoft builds other kernels, too.
    """
    for text in (release, version):
        if "microsoft-standard" in text or "WSL2" in text:
            return 2
    return 1 if release.startswith("4.4.") and "Microsoft" in release + version else None


# Command lines: people put tokens there, and nothing here hangs on them.
_NEVER_TOLD = frozenset({"boot.command", "wsl2.kernelcommandline"})


def parse_settings(text: str) -> dict[str, str]:
    """By "section.key" in lower case, the value as written without its quotes. Of two equal keys the first counts.

    Raises ValueError that names the line: neither a section, nor a key and a value, nor a comment.
    """
    settings: dict[str, str] = {}
    section = ""
    for number, raw in enumerate(re.sub(r"\\\r?\n", "", text).splitlines(), 1):
        line = raw.strip()
        bare = line.partition("#")[0].rstrip()
        if not bare:
            continue
        if heading := _SECTION.fullmatch(bare):
            section = heading[1].lower() + "."
        elif pair := _KEY.fullmatch(line):
            name = section + pair[1].lower()
            if name not in _NEVER_TOLD:
                settings.setdefault(name, _unquote(pair[2]))
        else:
            from watchdog.masking import mask_text  # only for a line that is wrong

            raise ValueError(f"line {number} is neither [section] nor key=value: {printable(mask_text(line))[:100]!r}")
    return settings


def _unquote(value: str) -> str:
    """Quotes protect spaces and `#`, a backslash the next character."""
    found, quoted, kept = "", False, 0
    for escaped, quote, comment, plain, lone in _PIECE.findall(value):
        if quote:
            quoted = not quoted
            kept = len(found)
        elif comment and not quoted:
            break
        else:
            found += escaped or comment or plain or lone
            kept = len(found) if quoted or escaped else kept
    return found[:kept] + found[kept:].rstrip()


def decode(content: bytes) -> str:
    """Notepad writes UTF-8 with or without a mark, or UTF-16 with one. Raises ValueError."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16")
    return content.decode("utf-8-sig")


class WslReader:
    """Reads again and again; keeps what the child answered, and the child that did not come back."""

    def __init__(self, roots: Roots, clock: Clock, environ: Mapping[str, str] | None = None) -> None:
        self._roots = roots
        self._clock = clock
        self._environ = os.environ if environ is None else environ
        self._child = DisposableChild(".wslconfig on the Windows drive", clock)
        self._windows: tuple[Fact[dict[str, str]], str] | None = None
        self._asked_s = 0.0

    def read(self, deadline_s: float = 5.0) -> Fact[Wsl]:
        """WSL as it is now; blocks for `deadline_s` and a little at most, the first time. Raises OSError."""
        release, text = self._line("sys/kernel/osrelease"), self._line("version")
        version = wsl_version(release, text)
        if version is None:
            return Absent(f"kernel {release} is not one of WSL")
        guest = self._guest_settings()
        windows, path = self._windows_settings(version, guest, deadline_s)
        try:
            systemd: bool | None = self._line("1/comm") == "systemd"
        except OSError:
            systemd = None
        return Known(
            Wsl(
                version=version,
                kernel=release,
                systemd=systemd,
                guest_settings=guest,
                windows_settings=windows,
                windows_settings_path=path,
                dxg=os.path.exists(f"{self._roots.dev}/dxg"),
            ),
            self._clock.monotonic(),
        )

    def _line(self, name: str) -> str:
        with open(f"{self._roots.proc}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read(1000).strip()

    def _guest_settings(self) -> Fact[dict[str, str]]:
        try:
            with open(self._roots.host("/etc/wsl.conf"), "rb") as file:
                content = file.read(_LIMIT_BYTES)
        except FileNotFoundError:
            content = b""
        except OSError as error:
            return Unknown(f"/etc/wsl.conf: {error.strerror}")
        return self._parsed("/etc/wsl.conf", content)

    def _parsed(self, path: str, content: bytes) -> Fact[dict[str, str]]:
        try:
            return Known(parse_settings(decode(content)), self._clock.monotonic())
        except ValueError as error:
            return Unknown(f"{path}: {error}")

    def _windows_settings(
        self, version: int, guest: Fact[dict[str, str]], deadline_s: float
    ) -> tuple[Fact[dict[str, str]], str]:
        if version == 1:
            return Absent("WSL 1 reads no .wslconfig"), ""
        kept, now_s = self._windows, self._clock.monotonic()
        if kept is None or (isinstance(kept[0], Unknown) and now_s - self._asked_s >= _AGAIN_S):
            self._asked_s = now_s
            self._windows = kept = self._ask(guest, deadline_s)
        return kept

    def _ask(self, guest: Fact[dict[str, str]], deadline_s: float) -> tuple[Fact[dict[str, str]], str]:
        drives = guest.value.get("automount.root", "/mnt/") if isinstance(guest, Known) else "/mnt/"
        profile = self._environ.get("USERPROFILE", "")  # there if WSLENV names it, with /p as a path of ours
        if windows := _WINDOWS_PATH.fullmatch(profile):
            profile = os.path.join(drives, windows[1].lower(), windows[2].replace("\\", "/"))
        users = self._roots.host(os.path.join(drives, "c/Users"))
        folder = self._roots.host(profile) if profile.startswith("/") else ""
        argv = [sys.executable, "-I", "-S", "-c", _CHILD, repr(deadline_s), str(_LIMIT_BYTES), users, folder]
        answer = self._child.ask(argv, deadline_s)
        if isinstance(answer, Unknown):
            return answer, ""
        try:
            told = json.loads(answer)
            if "error" in told:
                return Unknown(f".wslconfig cannot be read: {told['error']}"), ""
            path, content = printable(str(told["path"])), bytes.fromhex(told["hex"])
        except (ValueError, TypeError, KeyError):
            return Unknown(f"the child that read .wslconfig answered {answer[:200]!r}, which is no answer"), ""
        return self._parsed(path, content), path
