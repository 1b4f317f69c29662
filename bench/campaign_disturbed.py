"""The bundled trainer in bad company: the real one, with a disturbance that is in place before it begins.

Responsible for what cannot be done to a process from outside: ignoring TERM, a child that escapes from its session and
empties its environment, a disk that is slow to sync, a checkpoint that is swapped between its choice and its loading.
Refuses to change how anything is computed, so that losses stay comparable to the last digit.

    python -P -m bench.campaign_disturbed [--ignore-term] [--escapee] [--slow-sync SECONDS]
                                          [--swap-once FOLDER MARKER] -- TRAINER ARGUMENTS
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from watchdog import contract

# An escapee ignores what can be ignored and needs nothing: no descriptor, no environment, no folder.
_ESCAPEE = "import signal,time\nfor n in (1,2,15): signal.signal(n, signal.SIG_IGN)\nwhile True: time.sleep(0.5)"


def ignore_term() -> None:
    """TERM is ignored, and the trainer's own handler is never set."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    contract.Run.drain_on_sigterm = lambda _self: None  # type: ignore[method-assign, assignment]


def release_escapee() -> None:
    """A grandchild in a session of its own, without descriptors and environment, that outlives everybody."""
    run_id, folder = os.environ[contract.ENV_RUN_ID], os.environ[contract.ENV_CHECKPOINTS]
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    os.closerange(0, 4096)
    python = os.path.realpath(sys.executable)
    os.execve(python, [python, "-I", "-S", "-c", _ESCAPEE, f"--of-run={run_id}", f"--of-job={folder}"], {})


def slow_sync(seconds: float) -> None:
    """Every fsync takes longer by `seconds`, so that a save has a middle that can be hit."""
    fsync = os.fsync

    def slow(fd: int) -> None:
        time.sleep(seconds)
        fsync(fd)

    os.fsync = slow  # type: ignore[assignment]


def swap_once(stranger: Path, marker: Path) -> None:
    """Put another run's checkpoint of the same step, manifest included, where the verified one lies; only once."""
    manifest = os.environ.get(contract.ENV_RESUME_MANIFEST)
    if manifest is None or marker.exists():
        return
    target = Path(manifest)
    swap(target, stranger / target.name)
    marker.write_text(target.name)


def swap(target: Path, source: Path) -> None:
    """Replace the checkpoint of manifest `target` by that of manifest `source`, consistent in itself."""
    for file in contract.Manifest.read(target).files:
        (target.parent / file.name).unlink()
    for file in contract.Manifest.read(source).files:
        shutil.copyfile(source.parent / file.name, target.parent / file.name)
    temporary = target.with_name(f".{target.name}.swap")
    shutil.copyfile(source, temporary)
    os.replace(temporary, target)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--escapee", action="store_true")
    parser.add_argument("--slow-sync", type=float, default=0.0)
    parser.add_argument("--swap-once", type=Path, nargs=2)
    border = argv.index("--")
    wishes = parser.parse_args(argv[:border])
    if wishes.ignore_term:
        ignore_term()
    if wishes.escapee:
        release_escapee()
    if wishes.slow_sync:
        slow_sync(wishes.slow_sync)
    if wishes.swap_once:
        swap_once(*wishes.swap_once)
    from trainer.__main__ import main as train

    return train(argv[border + 1 :])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
