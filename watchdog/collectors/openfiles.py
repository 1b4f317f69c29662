"""Who has a file open, and how, from `/proc/*/fd` and `/proc/*/fdinfo`.

Responsible for going over the open files of all processes we may look into, and for counting those we may not.
Refuses to touch the files themselves: the name of an open file (readlink) and its fdinfo come from the kernel's own
memory, while a stat through `/proc/PID/fd/N` would ask a file system that may hang.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

from msgspec import Struct

_DELETED = " (deleted)"
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD in field 9 of /proc/PID/stat: has no files


class OpenFile(Struct, frozen=True):
    """One descriptor of one process. `name` as the kernel writes it, without its ` (deleted)` mark."""

    pid: int
    fd: str
    name: str
    deleted: bool


@dataclasses.dataclass(slots=True)
class Scan:
    """Goes over the open files; afterwards `unreadable` tells how many processes could not be looked into.

    `keep`: what was seen the first time is told again each further time, for who asks the same moment several things.
    """

    proc: str = "/proc"
    unreadable: int = 0
    keep: bool = False
    _kept: tuple[OpenFile, ...] | None = None

    def __iter__(self) -> Iterator[OpenFile]:
        if not self.keep:
            return self._look()
        if self._kept is None:
            self._kept = tuple(self._look())
        return iter(self._kept)

    def _look(self) -> Iterator[OpenFile]:
        self.unreadable = 0
        if self.proc == "/proc" and not os.path.exists("/proc/1"):  # hidepid: nobody knows how many there are
            self.unreadable += 1
        for name in os.listdir(self.proc):
            if not name.isdigit():
                continue
            folder = f"{self.proc}/{name}/fd"
            try:
                fds = os.listdir(folder)
            except PermissionError:
                self.unreadable += not self._has_no_files(name)
                continue
            except OSError:  # ended while we looked
                continue
            for fd in fds:
                try:
                    target = os.readlink(f"{folder}/{fd}")
                except PermissionError:  # another user's, seen from a user namespace: all of its files are hidden
                    self.unreadable += 1
                    break
                except OSError:  # closed while we looked
                    continue
                deleted = target.endswith(_DELETED)
                yield OpenFile(int(name), fd, target.removesuffix(_DELETED), deleted)

    def _has_no_files(self, pid: str) -> bool:
        """Kernel threads, and processes that are gone or dead: no reason to be unsure."""
        try:
            with open(f"{self.proc}/{pid}/stat", "rb") as file:
                fields = (data := file.read())[data.rindex(b")") + 2 :].split()
            return fields[0] in b"ZX" or bool(int(fields[6]) & _KERNEL_THREAD)
        except FileNotFoundError:
            return True
        except (OSError, ValueError, IndexError):
            return False


def read_fdinfo(file: OpenFile, proc: str = "/proc") -> str | None:
    """The fdinfo of a descriptor (proc_pid_fdinfo(5)), None when it is gone or not ours to see."""
    try:
        with open(f"{proc}/{file.pid}/fdinfo/{file.fd}", encoding="ascii", errors="replace") as info:
            return info.read()
    except OSError:
        return None
