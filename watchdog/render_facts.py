"""Facts as JSON: each one says whether it is known, unknown or absent. The schema is docs/diagnose.schema.json.

Refuses to leave anything out: what a check saw, a program may see.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from watchdog.contract import encode_number
from watchdog.core.fact import Absent, Known, Unknown
from watchdog.core.findings import Finding


def finding_record(finding: Finding) -> dict[str, Any]:
    """A finding for the ledger: figures and evidence as they stood."""
    return {
        "check": finding.check,
        "severity": finding.severity.name.lower(),
        "subject": finding.subject,
        "device": finding.device,
        "reason": finding.reason,
        "evidence": list(finding.evidence),
        "cause": finding.cause,
        "remedy": finding.remedy.name.lower(),
    }


def record_of(value: Any) -> Any:
    """A fact, a snapshot, or anything in one, as plain JSON; non-finite numbers as strings."""
    match value:
        case Known():
            return {"state": "known", "at_s": value.at_s, "value": record_of(value.value)}
        case Unknown():
            return {"state": "unknown", "why": value.why}
        case Absent():
            return {"state": "absent", "why": value.why}
        case enum.Enum():
            return value.value
        case float():
            return encode_number(value)
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case Mapping():
            return {str(key): record_of(each) for key, each in value.items()}
        case tuple() | list():
            return [record_of(each) for each in value]
    if isinstance(value, Struct):
        return {name: record_of(getattr(value, name)) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: record_of(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value
