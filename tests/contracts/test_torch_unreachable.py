"""torch cannot be reached from `watchdog`: every module imports where torch, numpy and tokenizers refuse to.

`test_packaging.py` says the same of an environment with the core dependencies only; this one is quick, and names the
module that asked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import importlib, importlib.abc, json, pkgutil, sys
HEAVY = {"torch", "numpy", "tokenizers", "trainer", "bench"}

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in HEAVY:
            raise ImportError(f"{name} is out of reach here")
        return None

sys.meta_path.insert(0, Refuse())
sys.path.insert(0, sys.argv[1])
import watchdog
imported, failed = [], {}
def broken(name):
    failed[name] = repr(sys.exc_info()[1])
for found in pkgutil.walk_packages(watchdog.__path__, "watchdog.", onerror=broken):
    if found.module_finder.path.startswith(sys.argv[1]):
        try:
            importlib.import_module(found.name)
            imported.append(found.name)
        except BaseException as error:
            failed[found.name] = repr(error)
json.dump({"imported": imported, "failed": failed, "heavy": sorted(HEAVY & set(sys.modules))}, sys.stdout)
"""


def import_everything(root: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", PROGRAM, str(root)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_every_module_of_watchdog_imports_without_torch() -> None:
    answer = import_everything(ROOT)
    assert answer["failed"] == {}
    assert answer["heavy"] == []
    expected = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "watchdog").rglob("*.py")
    } - {"watchdog"}
    missed = expected - set(answer["imported"])  # type: ignore[call-overload]
    assert not missed, f"not imported: {', '.join(sorted(missed))}; does its folder hold an __init__.py?"


def test_the_refusal_works(tmp_path: Path) -> None:
    package = tmp_path / "watchdog"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sly.py").write_text("def f():\n    pass\nimport numpy\n")
    answer = import_everything(tmp_path)
    assert "numpy is out of reach" in str(answer["failed"])
