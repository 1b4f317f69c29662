"""docs/diagnose.schema.json: what `watchdog diagnose --json` answers, made from the types that it is made of.

    python -P -m watchdog.render_schema > docs/diagnose.schema.json

Descriptions are the first lines of the types' own docstrings. Refuses types that it does not know, so that no field of
an unknown shape gets into an answer.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from watchdog.core.collectorview import CollectorView
from watchdog.core.fact import Absent, Known, Unknown
from watchdog.core.facts import Facts
from watchdog.core.findings import Remedy, Severity
from watchdog.core.phase import Phase
from watchdog.render_diagnose import FORMAT

_NUMBER = {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}
_TEXT_OR_NULL = {"type": ["string", "null"]}


def schema() -> dict[str, Any]:
    """The whole schema, JSON Schema 2020-12."""
    definitions: dict[str, Any] = {}
    facts = _of(Facts, definitions)
    collector = _of(CollectorView, definitions)
    properties: dict[str, Any] = {
        "format": {"const": FORMAT, "description": "Raised when a field changes its meaning or goes away."},
        "exit_code": {"enum": [0, 1, 2, 3], "description": "0 ok, 1 warning, 2 critical, 3 unknown."},
        "taken_wall_s": {"type": "number", "description": "Seconds since the epoch."},
        "job": {"anyOf": [_job(), {"type": "null"}], "description": "null where only some checks were asked for."},
        "others": {
            "type": "array",
            "items": _job(),
            "description": "Where no job was named: further jobs that are on hold, or of which nothing can be told.",
        },
        "findings": {"type": "array", "items": _finding(), "description": "In the order of the catalogue."},
        "collectors": {"type": "object", "additionalProperties": collector},
        "facts": facts,
    }
    failure = {
        "format": {"const": FORMAT},
        "exit_code": {"const": 3},
        "error": {"type": "string", "description": "Why there is no answer: a wrong command line or configuration."},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "watchdog diagnose --json",
        "anyOf": [_object(properties), _object(failure)],
        "$defs": definitions,
    }


def _job() -> dict[str, Any]:
    states = ", ".join(phase.value for phase in Phase)
    return _object(
        {
            "name": {"type": "string"},
            "state": {
                "type": "string",
                "description": f"As watchdog status has it: {states}; without a supervisor also never started, "
                "stopped, unsupervised; unknown where nobody can tell. A hold is critical: it waits for a person.",
            },
            "severity": {"enum": [severity.name.lower() for severity in Severity]},
            "reason": {"type": "string", "description": "Why it is so: of a hold, what led to it."},
            "evidence": {"type": "array", "items": {"type": "string"}},
            "next": {**_TEXT_OR_NULL, "description": "What a person does next; null where there is nothing to do."},
        }
    )


def _finding() -> dict[str, Any]:
    return _object(
        {
            "check": {
                "type": "string",
                "description": "Its name; watchdog diagnose --explain NAME tells all about it.",
            },
            "severity": {"enum": [severity.name.lower() for severity in Severity]},
            "absent": {"type": "boolean", "description": "There was nothing to look at; this is no pass."},
            "subject": {"type": "string", "description": "The device, disk or process meant, for a person."},
            "device": {**_TEXT_OR_NULL, "description": "UUID, for a finding about one device."},
            "reason": {"type": "string", "description": "A sentence with figures and units."},
            "evidence": {"type": "array", "items": {"type": "string"}},
            "cause": {**_TEXT_OR_NULL, "description": "What is most likely behind it."},
            "remedy": {"enum": [remedy.name.lower() for remedy in Remedy]},
            "next": {**_TEXT_OR_NULL, "description": "The remedy in words; null where there is nothing to do."},
        }
    )


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of one type. Raises TypeError for a type that no answer may hold."""
    simple: dict[Any, dict[str, Any]] = {
        bool: {"type": "boolean"},
        int: {"type": "integer"},
        float: _NUMBER,
        str: {"type": "string"},
        type(None): {"type": "null"},
    }
    if kind in simple:
        return simple[kind]
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_of(part, definitions) for part in parts]}
    if origin is Known:
        known = {"state": {"const": "known"}, "at_s": {"type": "number"}, "value": _of(parts[0], definitions)}
        return _object(known)
    if kind in (Unknown, Absent):
        word = "unknown" if kind is Unknown else "absent"
        return _object({"state": {"const": word}, "why": {"type": "string"}})
    if origin is tuple and len(parts) == 2 and parts[1] is Ellipsis:
        return {"type": "array", "items": _of(parts[0], definitions)}
    if origin is tuple:
        items = [_of(part, definitions) for part in parts]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _of(parts[1], definitions)}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    names = _fields(kind)
    if names is not None:
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}  # a type may hold itself
            hints = typing.get_type_hints(kind)
            fields = {name: _of(hints[name], definitions) for name in names}
            about = (kind.__doc__ or "").strip().partition("\n")[0]
            definitions[kind.__name__] = {"description": about, **_object(fields)}
        return {"$ref": f"#/$defs/{kind.__name__}"}
    raise TypeError(f"{kind!r} has no place in an answer")


def _fields(kind: Any) -> tuple[str, ...] | None:
    """The field names of a record type, None for any other."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        return kind.__struct_fields__
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return None


def page() -> str:
    """The file."""
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
