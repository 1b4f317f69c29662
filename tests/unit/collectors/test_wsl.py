"""WSL on fixture trees: the kernel's name, both settings files, and a Windows drive that does not answer."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tests.unit.collectors.test_runner import HandClock
from watchdog.clock import SystemClock
from watchdog.collectors.roots import Roots
from watchdog.collectors.wsl import WslReader, decode, parse_settings, wsl_version
from watchdog.core.facts import Absent, Fact, Known, Unknown, Wsl

RELEASE = "5.15.167.4-microsoft-standard-WSL2"


class Tree:
    """A host made of files, which is WSL 2 to begin with."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.environ: dict[str, str] = {}
        self.put("/proc/sys/kernel/osrelease", RELEASE + "\n")
        self.put("/proc/version", f"Linux version {RELEASE} (root@1) (gcc 11)\n")
        self.put("/proc/1/comm", "systemd\n")
        self.put("/dev/dxg", "")
        (base / "mnt/c/Users/me").mkdir(parents=True)

    def put(self, path: str, content: str | bytes) -> Path:
        target = self.base / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        return target

    def read(self) -> Wsl:
        fact = WslReader(Roots(str(self.base)), SystemClock(), self.environ).read()
        assert isinstance(fact, Known)
        return fact.value


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def known(fact: Fact[dict[str, str]]) -> dict[str, str]:
    assert isinstance(fact, Known), fact
    return fact.value


@pytest.mark.parametrize(
    ("release", "text", "version"),
    [
        (RELEASE, "", 2),
        ("4.19.43-microsoft-standard", "", 2),
        ("6.6.1-mine", "Linux version 6.6.1-mine-WSL2 (me@here)", 2),
        ("4.4.0-19041-Microsoft", "Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com)", 1),
        ("6.1.0-13-amd64", "Linux version 6.1.0-13-amd64 (debian-kernel@lists.debian.org)", None),
        ("6.6.57.1-azl3", "Linux version 6.6.57.1-azl3 (builder@microsoft.com)", None),
    ],
)
def test_the_kernel_says_what_it_is(release: str, text: str, version: int | None) -> None:
    assert wsl_version(release, text) == version


def test_another_kernel_is_absent_and_starts_no_child(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent")  # starting a child would raise
    tree.put("/proc/sys/kernel/osrelease", "6.1.0-13-amd64\n")
    tree.put("/proc/version", "Linux version 6.1.0-13-amd64\n")
    fact = WslReader(Roots(str(tree.base)), SystemClock(), {}).read()
    assert fact == Absent("kernel 6.1.0-13-amd64 is not one of WSL")


def test_everything_there_is(tree: Tree) -> None:
    tree.put("/etc/wsl.conf", '[boot]\nsystemd = true\n[automount]\noptions = "metadata,umask=22" # mine\n')
    path = tree.put("/mnt/c/Users/me/.wslconfig", "[wsl2]\r\nmemory=24GB\r\nvmIdleTimeout=-1\r\n")
    found = tree.read()
    assert (found.version, found.kernel, found.systemd, found.dxg) == (2, RELEASE, True, True)
    assert known(found.guest_settings) == {"boot.systemd": "true", "automount.options": "metadata,umask=22"}
    assert known(found.windows_settings) == {"wsl2.memory": "24GB", "wsl2.vmidletimeout": "-1"}
    assert found.windows_settings_path == str(path)


def test_no_files_are_no_settings(tree: Tree) -> None:
    tree.put("/proc/1/comm", "init\n")
    (tree.base / "dev/dxg").unlink()
    found = tree.read()
    assert (known(found.guest_settings), known(found.windows_settings)) == ({}, {})
    assert (found.systemd, found.dxg, found.windows_settings_path) == (False, False, "")
    (tree.base / "proc/1/comm").unlink()
    assert tree.read().systemd is None


@pytest.mark.parametrize("content", ["[wsl2]\nmemory 8GB\n", "[wsl2\n", "!!\n", b"\xff\xfe[\x00w", b"\x80"])
def test_a_file_that_cannot_be_understood_is_unknown(tree: Tree, content: str | bytes) -> None:
    tree.put("/etc/wsl.conf", content)
    tree.put("/mnt/c/Users/me/.wslconfig", content)
    found = tree.read()
    assert isinstance(found.guest_settings, Unknown)
    assert isinstance(found.windows_settings, Unknown)
    assert found.guest_settings.why.startswith("/etc/wsl.conf: ")


def test_the_bad_line_is_named_without_its_secrets() -> None:
    with pytest.raises(ValueError, match=r"line 3 is neither \[section\] nor key=value: 'run --token \*\*\*'"):
        parse_settings("# a\n[boot]\nrun --token hunter2hunter2\n")


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("[WSL2]\nMemory=8GB\nmemory=9GB\n", {"wsl2.memory": "8GB"}),  # the first counts
        ("key=1\n# no\n\n[a]#x\nb = \n", {"key": "1", "a.b": ""}),
        ('[a]\nk=" x # y "  # z\nl=C:\\\\t\nm=a \\\n  b\n', {"a.k": " x # y ", "a.l": "C:\\t", "a.m": "a   b"}),
    ],
)
def test_settings_as_written(text: str, settings: dict[str, str]) -> None:
    assert parse_settings(text) == settings


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_notepads_encodings(encoding: str) -> None:
    assert decode("[wsl2]\r\nä=1".encode(encoding)) == "[wsl2]\r\nä=1"


@pytest.mark.parametrize("profile", ["/mnt/c/Users/me", r"C:\Users\me"])
def test_the_profile_of_the_environment_comes_first(tree: Tree, profile: str) -> None:
    mine = tree.put("/mnt/c/Users/me/.wslconfig", "[wsl2]\nmemory=1GB\n")
    other = tree.put("/mnt/c/Users/other/.wslconfig", "[wsl2]\nmemory=2GB\n")
    os.utime(mine, (1, 1))
    assert tree.read().windows_settings_path == str(other)  # the newest, without anything better
    tree.environ["USERPROFILE"] = profile
    assert known(tree.read().windows_settings) == {"wsl2.memory": "1GB"}


def test_drives_are_where_the_settings_say(tree: Tree) -> None:
    tree.put("/etc/wsl.conf", "[automount]\nroot = /windows\n")
    tree.put("/windows/c/Users/me/.wslconfig", "[wsl2]\nmemory=3GB\n")
    assert known(tree.read().windows_settings) == {"wsl2.memory": "3GB"}


def test_a_drive_that_is_not_there_is_unknown(tree: Tree) -> None:
    tree.environ["USERPROFILE"] = r"D:\me"
    found = tree.read().windows_settings
    assert isinstance(found, Unknown)
    assert f"{tree.base}/mnt/d/me: No such file" in found.why


def test_wsl_1_has_no_such_file(tree: Tree) -> None:
    tree.put("/proc/sys/kernel/osrelease", "4.4.0-19041-Microsoft\n")
    tree.put("/proc/version", "Linux version 4.4.0-19041-Microsoft\n")
    found = tree.read()
    assert found.version == 1
    assert isinstance(found.windows_settings, Absent)


def test_a_drive_that_does_not_answer_is_unknown_in_time_and_asked_again_later(tree: Tree) -> None:
    """A named pipe in the file's place holds the child as a dead drive would."""
    pipe = tree.base / "mnt/c/Users/me/.wslconfig"
    os.mkfifo(pipe)
    clock = HandClock()
    reader = WslReader(Roots(str(tree.base)), clock, {})

    def windows() -> Fact[dict[str, str]]:
        fact = reader.read(0.5)
        assert isinstance(fact, Known)
        return fact.value.windows_settings

    started = time.monotonic()
    assert windows() == Unknown(".wslconfig on the Windows drive did not answer within 0.5 s")
    assert time.monotonic() - started < 4
    pipe.unlink()
    pipe.write_text("[wsl2]\nmemory=4GB\n")
    assert isinstance(windows(), Unknown)  # not asked again yet
    clock.now += 601
    assert known(windows()) == {"wsl2.memory": "4GB"}
    pipe.unlink()
    clock.now += 10_000
    assert known(windows()) == {"wsl2.memory": "4GB"}  # it was in force when WSL started; the drive is left alone


def test_command_lines_are_never_told() -> None:
    """People put tokens there, and a diagnosis is sent to others."""
    text = "[boot]\ncommand = curl -H 'Authorization: Bearer hunter2'\nsystemd=true\n"
    assert parse_settings(text) == {"boot.systemd": "true"}
