"""Who may import whom: the layers of CONTRIBUTING.md, read from the source of every module that exists.

Walks the syntax trees, so that an import inside a function or under TYPE_CHECKING counts as well. Refuses modules that
no layer names: whoever adds one decides where it belongs, in `LAYERS` below.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = ("watchdog", "trainer", "bench")

# From the top down. A module or package may import its own layer and everything below, never above.
# `settings` means settings_shape.py and its like, too: a subject that needs several files keeps its name in front.
LAYERS: tuple[tuple[str, frozenset[str]], ...] = (
    ("command line", frozenset({"cli"})),
    (
        "commands",
        frozenset(
            {
                *("running", "asking", "showing", "diagnosing", "jobseen", "reclaiming", "pruning"),
                *("relaunching", "rehearsing", "goingback"),
            }
        ),
    ),
    (
        "loop",
        frozenset(
            {
                "supervisor",
                "choosing",
                "policy",
                "subreaping",
                "opening",
                "launching",
                "hostwatch",
                "statusview",
                "tidying",
                "places",
                "ledgerview",
                "looking",
                "concluding",
                "leftover",
                "makingroom",
                "memorynoting",
                "retaining",
                "gpuproving",
                "measuring",
                "keeping",
                "cgrouping",
                "signalling",
                "listening",
                "branching",
                "progressing",
                "episodes",
                "notifier",
                "milestones",
                "learning",
                "runfacts",
                "judging",
                "relay",
                "drills",
            }
        ),
    ),
    ("views", frozenset({"diagnose", "lookout", "remembered", "render", "screen", "wrapping"})),
    (
        "edges",
        frozenset({"actuators", "baselines", "collectors", "checkpoints", "ledger", "incidents", "control", "metrics"}),
    ),
    # Settings name checks and patterns, and say so when there is none of that name.
    ("settings", frozenset({"settings", "folders", "joblimits"})),
    ("judges", frozenset({"checks", "classify"})),
    ("core", frozenset({"core", "clock", "errors", "masking", "units"})),
    ("contract", frozenset({"contract", "shim"})),
)
ALONE = frozenset({"contract", "shim"})  # import the standard library and nothing else, not even their neighbours

# Inside one layer: (who, what it leaves alone, why).
NEVER: tuple[tuple[str, str, str], ...] = (
    ("watchdog.collectors", "watchdog.actuators", "who gathers facts must not act on them"),
    ("watchdog.collectors", "watchdog.ledger", "a collector keeps no record; its caller does"),
    ("watchdog.supervisor", "watchdog.drills", "product code knows nothing of drills"),
    ("watchdog.relay", "watchdog.drills", "product code knows nothing of drills"),
    ("watchdog.diagnose", "watchdog.actuators", "a diagnosis acts on nothing"),
    ("watchdog.diagnosing", "watchdog.actuators", "a diagnosis acts on nothing"),
    ("watchdog.lookout", "watchdog.actuators", "who looks acts on nothing"),
    ("watchdog.render", "watchdog.actuators", "a view acts on nothing"),
    ("watchdog.screen", "watchdog.actuators", "a view acts on nothing"),
    ("watchdog.metrics", "watchdog.actuators", "a view acts on nothing"),
    ("watchdog.checks", "watchdog.settings", "checks judge facts and limits that are passed in"),
    ("watchdog.classify", "watchdog.settings", "classifiers judge what is passed in"),
    ("watchdog.checks", "watchdog.folders", "checks judge facts, paths are for collectors"),
    ("watchdog.classify", "watchdog.folders", "classifiers judge what is passed in, paths are for collectors"),
)

# What a top-level module of somebody else is called on PyPI, and which parts of watchdog may use it.
THIRD_PARTY: dict[str, tuple[str, frozenset[str]]] = {
    "pynvml": ("nvidia-ml-py", frozenset({"collectors"})),
    "psutil": ("psutil", frozenset({"actuators", "collectors", "supervisor", "metrics", "drills"})),
    "prometheus_client": ("prometheus-client", frozenset({"metrics", "running"})),
    "typer": ("typer", frozenset({"cli"})),
    "tenacity": ("tenacity", frozenset({"collectors", "control", "actuators", "checkpoints", "relay"})),
    # Facts are its structs, wherever they are made, judged or shown: docs/decisions/0014.
    "msgspec": (
        "msgspec",
        frozenset(
            {
                *("settings", "control", "ledger", "core", "checks", "classify", "collectors", "lookout", "diagnose"),
                *("gpuproving", "hostwatch", "makingroom", "measuring", "remembered", "render", "runfacts"),
            }
        ),
    ),
}

PURE = ("core", "checks", "classify", "masking", "units")
PURE_STANDARD_LIBRARY = frozenset(
    {
        "__future__",
        "abc",
        "bisect",
        "collections",
        "dataclasses",
        "enum",
        "errno",  # names of numbers
        "fractions",
        "functools",
        "heapq",
        "itertools",
        "math",
        "operator",
        "re",
        "signal",  # names of numbers only, see below
        "statistics",
        "string",
        "textwrap",
        "types",
        "typing",
    }
)
# Records of numbers and texts, and nothing else of it.
PURE_THIRD_PARTY = frozenset({"msgspec.Struct", "msgspec.field", "msgspec.structs.replace"})
IMPURE_BUILTINS = frozenset({"open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint"})
# What of the contract reads or writes files, the clock or the process; the rest is data.
CONTRACT_WITH_IO = frozenset(
    {
        "Run",
        "digest_file",
        "handles",
        "join",
        "lock_by_hand",
        "read_json",
        "start_ticks",
        "sync_folder",
        "write_durably",
        "write_json_durably",
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Import:
    """One name that a module imports: `module`, and `name` for `from module import name`."""

    module: str
    name: str | None
    line: int


def part_of(name: str) -> str:
    """`core` for `watchdog.core.facts`, `settings` for `watchdog.settings_shape`, "" for the package itself."""
    part = name.split(".")[1] if "." in name else ""
    known = frozenset().union(*(parts for _, parts in LAYERS))
    subject = part.split("_")[0]
    return subject if part not in known and subject in known else part


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Module:
    name: str
    path: Path
    tree: ast.Module
    imports: tuple[Import, ...]

    @property
    def part(self) -> str:
        """The piece of its package that it belongs to: `core` for `watchdog.core.facts`."""
        return part_of(self.name)

    def at(self, line: int) -> str:
        return f"{self.path.relative_to(ROOT)}:{line}"


def _imports(name: str, is_package: bool, tree: ast.Module) -> tuple[Import, ...]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [Import(module=alias.name, name=None, line=node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = name.split(".") if is_package else name.split(".")[:-1]
                anchor = package[: len(package) - node.level + 1]
                base = ".".join([*anchor, base] if base else anchor)
            found += [Import(module=base, name=alias.name, line=node.lineno) for alias in node.names]
    return tuple(found)


def read_modules(root: Path, package: str) -> list[Module]:
    """Every module under `root/package`, parsed."""
    modules = []
    for path in sorted((root / package).rglob("*.py")):
        parts = list(path.relative_to(root).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        modules.append(Module(name=name, path=path, tree=tree, imports=_imports(name, is_package, tree)))
    return modules


WATCHDOG = read_modules(ROOT, "watchdog")
TRAINER = read_modules(ROOT, "trainer")
BENCH = read_modules(ROOT, "bench")
NAMES = frozenset(module.name for module in (*WATCHDOG, *TRAINER, *BENCH))


def target(imported: Import) -> str:
    """The module that an import means: `from watchdog import contract` means `watchdog.contract`."""
    if imported.name is not None and f"{imported.module}.{imported.name}" in NAMES:
        return f"{imported.module}.{imported.name}"
    return imported.module


def layer_of(part: str) -> int | None:
    for index, (_, parts) in enumerate(LAYERS):
        if part in parts:
            return index
    return None


def inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def test_there_is_something_to_check() -> None:
    assert len(WATCHDOG) > 5, (
        f"only {len(WATCHDOG)} modules under {ROOT / 'watchdog'}: this test looks in the wrong place"
    )


def test_every_module_has_a_layer() -> None:
    unknown = sorted({module.part for module in WATCHDOG if module.part and layer_of(module.part) is None})
    assert not unknown, (
        f"no layer for {', '.join(f'watchdog/{part}' for part in unknown)}: "
        "add each to the layer it belongs to, in LAYERS of tests/contracts/test_layers.py"
    )


def test_imports_go_down() -> None:
    problems = []
    for module in WATCHDOG:
        own = layer_of(module.part)
        for imported in module.imports:
            name = target(imported)
            if not inside(name, "watchdog") or own is None:
                continue
            if name == "watchdog":
                problems.append(f"{module.at(imported.line)}: watchdog has no name {imported.name!r} to import")
                continue
            other = layer_of(part_of(name))
            if other is not None and other < own:
                problems.append(
                    f"{module.at(imported.line)}: {module.name} ({LAYERS[own][0]}) imports {name} "
                    f"({LAYERS[other][0]}), which is above it; pass in what it needs"
                )
    assert not problems, "\n".join(problems)


def test_neighbours_that_leave_each_other_alone() -> None:
    problems = [
        f"{module.at(imported.line)}: {module.name} imports {target(imported)}; {why}"
        for who, what, why in NEVER
        for module in WATCHDOG
        if who == f"watchdog.{module.part}"
        for imported in module.imports
        if inside(target(imported), "watchdog") and what == f"watchdog.{part_of(target(imported))}"
    ]
    assert not problems, "\n".join(problems)


def test_no_import_goes_in_a_circle() -> None:
    edges = {
        module.name: {target(imported) for imported in module.imports} & NAMES - {module.name}
        for module in (*WATCHDOG, *TRAINER, *BENCH)
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, "circular import: " + " -> ".join((*path[path.index(name) :], name))
        if name in done:
            return
        for other in sorted(edges[name]):
            visit(other, (*path, name))
        done.add(name)

    for name in sorted(edges):
        visit(name, ())


@pytest.mark.parametrize("part", sorted(ALONE))
def test_contract_and_shim_need_only_the_standard_library(part: str) -> None:
    [module] = [module for module in WATCHDOG if module.name == f"watchdog.{part}"]
    tops = {imported.module.split(".")[0] for imported in module.imports}
    foreign = sorted(tops - sys.stdlib_module_names)
    assert not foreign, f"{module.path.relative_to(ROOT)} imports {', '.join(foreign)}; it must run with Python alone"


def test_third_party_modules_are_declared_and_stay_in_their_place() -> None:
    with open(ROOT / "pyproject.toml", "rb") as file:
        declared = {
            re.split(r"[<>=!~\[; ]", line, maxsplit=1)[0].lower()
            for line in tomllib.load(file)["project"]["dependencies"]
        }
    problems = [
        f"pyproject.toml: {distribution} is not declared"
        for distribution, _ in THIRD_PARTY.values()
        if distribution not in declared
    ]
    for module in WATCHDOG:
        for imported in module.imports:
            top = imported.module.split(".")[0]
            if top in sys.stdlib_module_names or top == "watchdog":
                continue
            if top not in THIRD_PARTY:
                problems.append(f"{module.at(imported.line)}: {top} is no dependency of watchdog (THIRD_PARTY)")
            elif module.part not in THIRD_PARTY[top][1]:
                allowed = ", ".join(sorted(THIRD_PARTY[top][1]))
                problems.append(f"{module.at(imported.line)}: {top} belongs to {allowed} only (THIRD_PARTY)")
    assert not problems, "\n".join(problems)


def test_nothing_is_imported_by_a_computed_name() -> None:
    problems = []
    for module in WATCHDOG:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in ("__import__", "importlib.import_module", "import_module"):
                    problems.append(f"{module.at(node.lineno)}: {called}() hides an import from these rules")
    assert not problems, "\n".join(problems)


def test_trainer_knows_the_contract_and_nothing_else() -> None:
    problems = [
        f"{module.at(imported.line)}: {module.name} imports {target(imported)}; it may use watchdog.contract only"
        for module in TRAINER
        for imported in module.imports
        if (inside(target(imported), "watchdog") and target(imported) != "watchdog.contract")
        or inside(imported.module, "bench")
    ]
    assert not problems, "\n".join(problems)


def test_the_probe_program_stands_alone() -> None:
    problems = [
        f"{module.at(imported.line)}: {module.name} imports {target(imported)}"
        for module in BENCH
        if module.name == "bench.matmul"
        for imported in module.imports
        if imported.module.split(".")[0] in OURS
    ]
    assert not problems, "\n".join(problems)


def _pure_problems(module: Module) -> list[str]:
    problems = []
    for imported in module.imports:
        where, top = module.at(imported.line), imported.module.split(".")[0]
        name = target(imported)
        if top == "watchdog":
            if part_of(name) not in (*PURE, "errors", "contract"):
                problems.append(f"{where}: a pure module imports {name}")
            if imported.module == "watchdog.contract" and imported.name in CONTRACT_WITH_IO:
                problems.append(f"{where}: watchdog.contract.{imported.name} does I/O")
        elif top not in PURE_STANDARD_LIBRARY and f"{imported.module}.{imported.name}" not in PURE_THIRD_PARTY:
            problems.append(f"{where}: {top} is not on the list of what a pure module may import")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_BUILTINS:
            problems.append(f"{module.at(node.lineno)}: {node.func.id}() in a pure module")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "signal" and not re.fullmatch(r"Signals|SIG[A-Z0-9]+", node.attr):
                problems.append(f"{module.at(node.lineno)}: signal.{node.attr} is more than a name of a number")
            if node.value.id == "contract" and node.attr in CONTRACT_WITH_IO:
                problems.append(f"{module.at(node.lineno)}: contract.{node.attr} does I/O")
    return problems


def test_core_checks_and_classify_are_pure() -> None:
    problems = [problem for module in WATCHDOG if module.part in PURE for problem in _pure_problems(module)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("import os", "os is not on the list"),
        ("def f():\n    import time\n", "time is not on the list"),
        ("from pathlib import Path", "pathlib is not on the list"),
        ("import psutil", "psutil is not on the list"),
        ("from watchdog.settings import Settings", "imports watchdog.settings"),
        ("from watchdog.contract import join", "does I/O"),
        ("from watchdog import contract\ncontract.read_json", "does I/O"),
        ("open('/proc/meminfo')", "open() in a pure module"),
        ("import signal\nsignal.raise_signal(9)", "more than a name of a number"),
    ],
)
def test_the_rule_for_pure_modules_bites(source: str, complaint: str) -> None:
    tree = ast.parse(source)
    name = "watchdog.core.example"
    module = Module(name=name, path=ROOT / "example.py", tree=tree, imports=_imports(name, False, tree))
    assert complaint in "\n".join(_pure_problems(module))


def test_relative_imports_are_understood() -> None:
    tree = ast.parse("from ..cli import main\nfrom . import facts\n")
    found = _imports("watchdog.core.example", False, tree)
    assert [(imported.module, imported.name) for imported in found] == [
        ("watchdog.cli", "main"),
        ("watchdog.core", "facts"),
    ]
