"""Where the host's own folders are: `/proc`, `/sys`, `/dev`.

Responsible for turning one prefix into those paths, so that a test can hand a collector a fixture tree.
Refuses to read anything, and to be a global.
"""

from __future__ import annotations

import os

from msgspec import Struct


class Roots(Struct, frozen=True):
    """`base` is the folder that stands for `/`."""

    base: str = "/"

    @property
    def proc(self) -> str:
        return self.host("/proc")

    @property
    def sys(self) -> str:
        return self.host("/sys")

    @property
    def dev(self) -> str:
        return self.host("/dev")

    def host(self, path: str) -> str:
        """An absolute path that a file of the host names, as we reach it."""
        return os.path.join(self.base, path.lstrip("/"))
