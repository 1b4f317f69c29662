"""What is shipped, under which names, and that it lives in one environment with PyPI's `watchdog`.

PyPI's `watchdog` (file-system events) has the same import name. Both must work in one environment, in either order,
ours as a wheel or editable. That rests on rules which are tested first, then on the real thing in fresh environments.
The environments have no pip of their own: the one that runs the tests installs into them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONSTRAINTS = ROOT / "constraints.txt"
# PyPI's watchdog has modules of these names; one of ours would hide it, or be hidden.
TAKEN = frozenset({"__main__", "events", "observers", "tricks", "utils", "version", "watchmedo"})
TOP_LEVEL = ("watchdog", "trainer", "bench")

BOTH_WORK = """
import watchdog.events, watchdog.observers, watchdog.contract, watchdog.core.phase
watchdog.observers.Observer().schedule(watchdog.events.FileSystemEventHandler(), ".")
print(watchdog.events.__file__)
print(watchdog.core.phase.__file__)
print(watchdog.contract.__file__)
"""

IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
heavy = {"torch", "numpy", "tokenizers"} & set(sys.modules)
assert not heavy, heavy
try:
    import torch
except ImportError:
    print("imported", len(sys.argv) - 1)
"""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Standard output of a command that must succeed; what it said goes into the failure."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=cwd,
        env=environment,
    )
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip(*words: str | Path) -> str:
    return run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *words)


class Environment:
    """A fresh virtual environment with Python alone."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True, with_pip=False)
        self.python = folder / "bin" / "python"
        self.scripts = folder / "bin"

    def install(self, *words: str | Path) -> None:
        pip("--python", self.python, "install", "--quiet", *words)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the distribution is built from, so that building leaves nothing behind in the checkout."""
    copy = tmp_path_factory.mktemp("source")
    for name in TOP_LEVEL:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def neighbour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PyPI's watchdog, fetched once."""
    folder = tmp_path_factory.mktemp("neighbour")
    pip("download", "--quiet", "--no-deps", "--dest", folder, "--constraint", CONSTRAINTS, "watchdog")
    [fetched] = folder.glob("watchdog-*")
    return fetched


# --- the rules -----------------------------------------------------------------------------------------------
def test_the_package_list_is_what_lies_there() -> None:
    found = {
        ".".join(path.parent.relative_to(ROOT).parts) for top in TOP_LEVEL for path in (ROOT / top).rglob("__init__.py")
    }
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == found, (
        "the package list of pyproject.toml and the folders with an __init__.py differ; a package that is not listed "
        "is not shipped"
    )


def test_every_folder_with_modules_is_a_package() -> None:
    bare = {
        str(path.parent.relative_to(ROOT))
        for top in TOP_LEVEL
        for path in (ROOT / top).rglob("*.py")
        if not (path.parent / "__init__.py").exists()
    }
    assert not bare, f"no __init__.py in {', '.join(sorted(bare))}"


def test_the_shared_package_stays_neutral() -> None:
    package = ROOT / "watchdog"
    assert (package / "__init__.py").read_bytes() == b"", "watchdog/__init__.py must stay empty: PyPI's may lie over it"
    assert not list(package.rglob("py.typed")), "a py.typed would speak for PyPI's watchdog as well"
    names = {path.stem if path.is_file() else path.name for path in package.iterdir()} - {"__init__", "__pycache__"}
    assert not names & TAKEN, f"PyPI's watchdog has {', '.join(sorted(names & TAKEN))}, too: choose another name"


def test_every_dependency_is_pinned() -> None:
    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    lines = [line for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    pinned = {plain(line.split("==")[0]) for line in lines}
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._]+", line) for line in lines), "one release a line"
    project = PYPROJECT["project"]
    wanted = [*project["dependencies"], *PYPROJECT["build-system"]["requires"]]
    for extra in ("trainer", "dev"):
        wanted += project["optional-dependencies"][extra]
    names = {plain(re.split(r"[<>=!~\[; ]", line, maxsplit=1)[0]) for line in wanted}
    assert names <= pinned, f"not in constraints.txt: {', '.join(sorted(names - pinned))}"


def test_no_index_but_the_usual_one_is_named() -> None:
    for name in ("pyproject.toml", "constraints.txt", "Makefile", ".ci/run"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for option in ("--index-url", "--extra-index-url", "--find-links", "--trusted-host"):
            assert option not in text, f"{name} says {option}: where packages come from is the user's configuration"


# --- the real thing ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ours_first", [True, False], ids=["ours-first", "theirs-first"])
@pytest.mark.parametrize("form", ["wheel", "editable"])
def test_both_watchdogs_work_together(
    form: str, ours_first: bool, source: Path, wheel: Path, neighbour: Path, tmp_path: Path
) -> None:
    environment = Environment(tmp_path / "venv")
    if form == "wheel":
        ours: tuple[str | Path, ...] = (wheel,)
    else:  # built by the setuptools of the environment that runs the tests, which pip then needs nobody to fetch
        built = tmp_path / "editable"
        editable_wheel(source, built)
        ours = tuple(built.glob("*.whl"))
    for files in (ours, (neighbour,)) if ours_first else ((neighbour,), ours):
        environment.install("--no-deps", *files)
    theirs_file, ours_file, contract_file = run(
        environment.python, "-P", "-W", "error", "-c", BOTH_WORK, cwd=tmp_path
    ).splitlines()
    assert Path(theirs_file).is_relative_to(tmp_path / "venv")
    home = source if form == "editable" else tmp_path / "venv"
    assert Path(ours_file).is_relative_to(home)
    assert Path(contract_file).is_relative_to(home)


def editable_wheel(source: Path, folder: Path) -> None:
    """The wheel that `pip install --editable` builds and installs, by the same hook of the build backend."""
    folder.mkdir()
    program = (
        "import sys; from setuptools import build_meta; "
        "print(build_meta.build_editable(sys.argv[1], {'--quiet': None}))"
    )
    run(sys.executable, "-c", program, folder, cwd=source)


def test_core_dependencies_are_enough_and_bring_no_torch(wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    environment.install("--constraint", CONSTRAINTS, wheel)
    modules = sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "watchdog").rglob("*.py")
    )
    answer = run(environment.python, "-P", "-W", "error", "-c", IMPORT_ALL, *modules, cwd=tmp_path)
    assert answer.split() == ["imported", str(len(modules))]
    assert "diagnose" in run(environment.scripts / "watchdog", "--help", cwd=tmp_path)
