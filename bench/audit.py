"""The audit: whether the invariants of the design hold in a ledger, by nothing but that ledger and the kernel's view.

Responsible for reading both and for telling each rule that is broken, with the record that breaks it. The rules are in
audit_rules.py (the ledger alone) and audit_kernel.py (the ledger against the kernel's view).
Refuses to import anything of the product, so that no mistake is made twice, and to be lenient: exit 0 means that every
rule was looked at and held.

    python -P -m bench.audit LEDGER [--kernel FILE] [--failures N] [--over] [--json] [--rules]

FILE is what bench/audit_eye.py has written beside the job. Without it the rules that need it are not looked at.
Exit codes: 0 all hold, 1 at least one does not, 2 something could not be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench import audit_kernel, audit_rules
from bench.audit_kernel import View, read_view
from bench.audit_rules import Book, Problem, read_book


def audit(book: Book, view: View | None) -> list[Problem]:
    """Every rule that can be looked at."""
    found = [problem for rule in audit_rules.RULES.values() for problem in rule(book)]
    if view is not None:
        found += [problem for rule in audit_kernel.RULES.values() for problem in rule(book, view)]
    return sorted(found, key=lambda problem: problem.line)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -P -m bench.audit", description=__doc__.split("\n")[0])
    parser.add_argument("ledger", type=Path, nargs="?", metavar="LEDGER", help="ledger.jsonl of a job")
    parser.add_argument("--kernel", type=Path, metavar="FILE", help="what bench.audit_eye has written beside it")
    parser.add_argument("--failures", type=int, default=3, help="the limit of the budgets, [relaunch] failures (3)")
    parser.add_argument("--over", action="store_true", help="the job is over: it must be finished, and nothing alive")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--rules", action="store_true", help="name every rule and leave")
    wishes = parser.parse_args(argv)
    if wishes.rules:
        for name, rule in {**audit_rules.RULES, **audit_kernel.RULES}.items():
            print(f"{name:<14} {(rule.__doc__ or '').splitlines()[0]}")
        return 0
    if wishes.ledger is None:
        parser.error("which ledger?")
    try:
        book = read_book(wishes.ledger.read_bytes(), failure_limit=wishes.failures, over=wishes.over)
        view = None if wishes.kernel is None else read_view(wishes.kernel.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError) as error:
        print(f"cannot be read: {error!r}", file=sys.stderr)
        return 2
    found = audit(book, view)
    figures = audit_rules.figures(book) | ({} if view is None else audit_kernel.figures(view))
    if wishes.json:
        problems = [{"rule": each.rule, "line": each.line, "words": each.words} for each in found]
        print(json.dumps({"problems": problems, "figures": figures}))
    else:
        for each in found:
            print(f"{each.rule}, line {each.line}: {each.words}")
        words = ", ".join(f"{value} {name}" for name, value in figures.items())
        rules = len(audit_rules.RULES) + (0 if view is None else len(audit_kernel.RULES))
        print(f"{rules} rules, {len(found)} broken places; {words}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
