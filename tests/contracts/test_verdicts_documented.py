"""README.md tells every rule of the verdict, in the order in which they are asked."""

from __future__ import annotations

import re
from pathlib import Path

from watchdog.checks.catalogue import CATALOGUE
from watchdog.core.symptoms import FAKING
from watchdog.core.verdict import RULES, Kind

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_of_verdicts_is_not_stale() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("## How the job is")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([a-z]+) \| (.+) \|$", section, re.MULTILINE)
    told = {kind: rules for kind, rules in rows if kind != "verdict"}
    assert told == {kind.value: ", ".join(rule.name for rule in RULES if rule.kind is kind) for kind in Kind}


def test_the_checks_that_rules_rest_on_exist() -> None:
    checks = {check.name for check in CATALOGUE}
    seen = {"beats", "processes", "output", "devices", "exit record", "checkpoints", "ledger", "acknowledgement"}
    assert {need for rule in RULES for need in rule.needs} <= checks | seen
    assert set(FAKING) <= checks
