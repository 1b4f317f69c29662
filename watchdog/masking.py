"""Hides passwords, tokens and keys in command lines and texts that a person will see.

Responsible for what is shown, never for what is executed. Refuses to be clever about values alone: a value is hidden
because its name says that it is secret, or because it has the shape of a well-known kind of token. What merely sounds
alike (`--tokens 512`, `--tokenizer path`, `--eos-token </s>`) stays readable, since a command line that nobody can
read helps nobody either. It lowers the risk; it cannot promise to know every secret.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

HIDDEN: Final = "***"

_ALWAYS_SECRET: Final = frozenset({"password", "passwd", "passphrase", "secret", "secrets", "apikey", "authtoken"})
# "token" is a word of every tokenizer, too; after these it is no secret.
_HARMLESS_TOKENS: Final = frozenset(
    {"eos", "bos", "pad", "padding", "unk", "sep", "cls", "mask", "special", "max", "min", "num", "per", "image"}
    | {"audio", "video", "start", "end", "stop", "prefix", "suffix", "first", "last", "next", "by", "think", "new"}
)
_KINDS_OF_KEY: Final = frozenset(
    {"api", "access", "secret", "private", "auth", "account", "encryption", "signing", "master", "license"}
)
# A name that ends so speaks about a secret without holding it.
_ABOUT: Final = frozenset(
    {"file", "path", "dir", "folder", "name", "count", "length", "len", "limit", "ttl", "type", "env", "size", "id"}
)
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def is_secret_name(name: str) -> bool:
    """Whether a flag, variable or key of this name holds a secret: `--api-key`, `HF_TOKEN`, `db.password`."""
    words = [word.lower() for word in _WORDS.findall(name[:200])]
    if not words or words[-1] in _ABOUT:
        return False
    if not _ALWAYS_SECRET.isdisjoint(words) or words[-1] == "authorization":
        return True
    before = words[-2] if len(words) > 1 else ""
    if words[-1] == "token":
        return before not in _HARMLESS_TOKENS
    if words[-1] == "pwd":
        return before != "" and before != "old"  # PWD and OLDPWD are folders
    return words[-1] == "key" and before in _KINDS_OF_KEY


# A known beginning, then enough of the rest to be no ordinary word: hf_transfer and sk-learn are not tokens.
_BODY: Final = r"(?=[A-Za-z0-9_\-]*[0-9A-Z])[A-Za-z0-9_\-]{8,}"
_KNOWN: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    rf"(hf_|gh[pousr]_|github_pat_|glpat-|gldt-|xox[abeoprs]-|xapp-|nvapi-|dckr_pat_|pypi-|npm_|sk-(?:ant-|proj-)?){_BODY}"
    r"|(AKIA|ASIA)[0-9A-Z]{12,}"
    r"|(AIza)[A-Za-z0-9_\-]{30,}"
    r"|(eyJ)[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*"
    r")"
)
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]{0,30}://[^\s/:@\"']{0,200}:)[^\s/@\"']{1,500}@")
_HEADER: Final = re.compile(
    r"(?i)\b((?:proxy-)?authorization[\"']?\s{0,3}[:=]\s{0,3}[\"']?)(?:(bearer|basic|token|digest)\s+)?[^\s\"',]+"
)
_BEARER: Final = re.compile(r"(?i)\b(bearer\s+)(?=[^\s]*[0-9])[A-Za-z0-9._~+/=\-]{8,}")
_VALUE: Final = r"(\"[^\"]*\"|'[^']*'|[^\s,;&\"'\)\}\]]+)"
_ASSIGNED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_.\-]{0,100})([\"']?\s{0,3}[=:]\s{0,3})(?!//)" + _VALUE)
_FLAG: Final = re.compile(r"(?<!\S)(--?[A-Za-z][A-Za-z0-9_.\-]{0,100})(\s+)(?!-)" + _VALUE)


def mask_text(text: str) -> str:
    """`text` with what looks secret replaced by `***`; names, users and the kind of a token stay."""
    text = _URL.sub(rf"\1{HIDDEN}@", text)
    text = _HEADER.sub(lambda match: match[1] + (match[2] + " " if match[2] else "") + HIDDEN, text)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    text = _KNOWN.sub(lambda match: next(group for group in match.groups() if group) + HIDDEN, text)
    text = _FLAG.sub(_hide_value, text)
    return _ASSIGNED.sub(_hide_value, text)


def _hide_value(match: re.Match[str]) -> str:
    name, between, value = match.groups()
    if not is_secret_name(name) or HIDDEN in value:
        return match.group()
    # The header rule has already dealt with these, and `Bearer` itself is no secret.
    if is_secret_name(name) and name.lower().endswith("authorization"):
        return match.group()
    quote = value[0] if value[0] in "\"'" else ""
    return f"{name}{between}{quote}{HIDDEN}{quote}"


def mask_command(argv: Sequence[str]) -> list[str]:
    """A command line for people: `--token X`, `--api-key=X`, `HF_TOKEN=X` and tokens of known shape are hidden."""
    shown: list[str] = []
    hide_next = False
    for argument in argv:
        if hide_next and not argument.startswith("-"):
            shown.append(HIDDEN)
            hide_next = False
            continue
        name, equals, _ = argument.partition("=")
        bare = _NAME.fullmatch(name.lstrip("-+"))
        hide_next = bool(not equals and argument.startswith("-") and bare and is_secret_name(name))
        # The whole rest of one argument is one value, spaces and all.
        shown.append(f"{name}={HIDDEN}" if equals and bare and is_secret_name(name) else mask_text(argument))
    return shown


_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,100}")
