"""Hides passwords, tokens and keys in command lines and texts that a person will see.

Responsible for what is shown, never for what is executed. Refuses to be clever about values alone: a value is hidden
because its name says that it is secret, because it has the shape of a well-known kind of token, or because a variable
with such a name is known to hold it (`secret_values`). What merely sounds
alike (`--tokens 512`, `--tokenizer path`, `--eos-token </s>`) stays readable, since a command line that nobody can
read helps nobody either. It lowers the risk; it cannot promise to know every secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

HIDDEN: Final = "***"

_ALWAYS_SECRET: Final = frozenset(
    {"password", "passwd", "passphrase", "secret", "secrets", "apikey", "authtoken", "sshpass", "dbpass"}
)
_PASSWORD: Final = ("password", "passwd", "passphrase")  # PGPASSWORD is one word
_LAST_SECRET: Final = frozenset({"authorization", "credential", "credentials", "creds", "cookie", "cookies", "auth"})
# "token" is a word of every tokenizer, too; after these it is no secret.
_HARMLESS_TOKENS: Final = frozenset(
    {"eos", "bos", "pad", "padding", "unk", "sep", "cls", "mask", "special", "max", "min", "num", "per", "image"}
    | {"audio", "video", "start", "end", "stop", "prefix", "suffix", "first", "last", "next", "by", "think", "new"}
)
# Any other "<word>_key" is taken for a secret: WANDB_KEY, AZURE_STORAGE_KEY.
_HARMLESS_KEYS: Final = frozenset(
    {"cache", "primary", "sort", "foreign", "public", "partition", "row", "column", "group", "dict", "map", "index"}
    | {"lookup", "join", "state", "metric", "config", "data", "json", "yaml", "field", "query", "hash", "num", "object"}
    | {"text", "image", "label", "input", "output", "target", "batch", "loss", "model", "param", "monitor", "best"}
    | {"rng", "prng", "random", "header", "search", "unique", "shard", "bucket", "first", "last", "next", "this", "any"}
    | {"missing", "unexpected", "unknown", "invalid", "duplicate", "bad", "wrong", "no", "same", "other", "each", "by"}
    | {"module", "layer", "attention", "expert", "route", "routing", "order", "file", "item", "tensor", "checkpoint"}
)
# "pass" is a word of every loop, too.
_HARMLESS_PASSES: Final = frozenset(
    {"forward", "backward", "first", "second", "last", "next", "one", "two", "single", "multi", "per", "by", "low"}
    | {"high", "band", "train", "eval", "test", "full", "max", "min", "num", "no", "this", "each", "all"}
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
    if not _ALWAYS_SECRET.isdisjoint(words) or words[-1] in _LAST_SECRET or words[-1].endswith(_PASSWORD):
        return True
    before = words[-2] if len(words) > 1 else ""
    match words[-1]:
        case "token":
            return before not in _HARMLESS_TOKENS
        case "pwd":
            return before not in ("", "old")  # PWD and OLDPWD are folders
        case "key":
            return before != "" and before not in _HARMLESS_KEYS
        case "pass":
            return before not in _HARMLESS_PASSES
    return False


# What stands behind a name that is only mostly a secret's: `--auth none`, `pass: 3`.
_PLAIN: Final = re.compile(r"(?i)[\"']?(?:true|false|none|null|yes|no|on|off|[0-9]{1,6}(?:[./][0-9]{1,6})?%?)[\"']?")


def _is_secret(name: str, value: str) -> bool:
    return is_secret_name(name) and (
        _PLAIN.fullmatch(value) is None or _WORDS.findall(name[:200])[-1].lower() not in ("pass", "auth", "key")
    )


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
_HOOK: Final = re.compile(
    r"(https://(?:hooks\.slack\.com/(?:services|workflows|triggers)|discord(?:app)?\.com/api/webhooks)/)[^\s\"'<>]+"
)
_PAIR: Final = r"([\"']?[A-Za-z0-9_.@\-]*[A-Za-z_@][A-Za-z0-9_.@\-]*:)(?!//)[^\s\"']+"  # user:password, not uid:gid
_USER: Final = re.compile(r"(?<!\S)(-u|--user|--proxy-user)([ =])" + _PAIR)
_KEY_FILE: Final = re.compile(r"(\"key\"\s{0,3}:\s{0,3}\")(?=[^\"]{0,100}[0-9])[A-Za-z0-9_+/=\-]{16,}\"")  # kaggle.json
_COOKIE: Final = re.compile(r"(?i)\b((?:set-)?cookie[\"']?\s{0,3}:\s{0,3}[\"']?)[^\r\n\"']+")
_PEM: Final = "PRIVATE KEY-----"
_PEM_BEGIN: Final = re.compile(r"-----BEGIN [A-Z ]{0,30}" + _PEM)
_PEM_END: Final = re.compile(r"-----END [A-Z ]{0,30}" + _PEM)
_PEM_BODY: Final = re.compile(r"(?:[A-Za-z0-9+/=]|\s|\\[nr])*\Z")
_HEADER: Final = re.compile(
    r"(?i)\b((?:proxy-)?authorization[\"']?\s{0,3}[:=]\s{0,3}[\"']?)(?:(bearer|basic|token|digest)\s+)?[^\s\"',]+"
)
_BEARER: Final = re.compile(r"(?i)\b(bearer\s+)(?=[^\s]*[0-9])[A-Za-z0-9._~+/=\-]{8,}")
_VALUE: Final = r"(\"[^\"]*\"|'[^']*'|[^\s,;&\"'\)\}\]]+)"
_ASSIGNED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_.\-]{0,100})([\"']?\s{0,3}[=:]\s{0,3})(?!//)" + _VALUE)
_FLAG: Final = re.compile(r"(?<!\S)(--?[A-Za-z][A-Za-z0-9_.\-]{0,100})(\s+)(?!-)" + _VALUE)


def mask_text(text: str) -> str:
    """`text` with what looks secret replaced by `***`; names, users and the kind of a token stay."""
    text = without_keys(text)
    text = _HOOK.sub(rf"\1{HIDDEN}", _URL.sub(rf"\1{HIDDEN}@", text))
    text = _USER.sub(rf"\1\2\3{HIDDEN}", text)
    text = _KEY_FILE.sub(rf'\1{HIDDEN}"', text)
    text = _COOKIE.sub(rf"\1{HIDDEN}", text)
    text = _HEADER.sub(lambda match: match[1] + (match[2] + " " if match[2] else "") + HIDDEN, text)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    text = _KNOWN.sub(lambda match: next(group for group in match.groups() if group) + HIDDEN, text)
    text = _FLAG.sub(_hide_value, text)
    return _ASSIGNED.sub(_hide_value, text)


def mask_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """As `mask_text`, of lines that belong together: a private key goes over many of them."""
    return tuple(mask_text("\n".join(lines)).split("\n"))


def without_keys(text: str) -> str:
    """`text` with private keys in PEM hidden, also where it begins or ends in the middle of one."""
    if _PEM not in text:
        return text
    parts: list[str] = []
    at = 0
    for begin in _PEM_BEGIN.finditer(text):
        if begin.start() < at:
            continue
        end = _PEM_END.search(text, begin.end())
        parts += [_without_rest(text[at : begin.start()]), begin.group(), HIDDEN]
        at = len(text) if end is None else end.end()
    return "".join((*parts, _without_rest(text[at:])))


def _without_rest(text: str) -> str:
    """The rest of a key whose beginning was cut off."""
    end = _PEM_END.search(text)
    if end is None:
        return text
    lines = text[: end.start()].split("\n")
    while lines and _PEM_BODY.match(lines[-1]):
        lines.pop()
    return "\n".join((*lines, HIDDEN + text[end.start() :]))


def _hide_value(match: re.Match[str]) -> str:
    name, between, value = match.groups()
    if not _is_secret(name, value) or HIDDEN in value:
        return match.group()
    # The header rules have already dealt with these, and `Bearer` itself is no secret.
    if name.lower().endswith("authorization"):
        return match.group()
    quote = value[0] if value[0] in "\"'" else ""
    return f"{name}{between}{quote}{HIDDEN}{quote}"


def mask_command(argv: Sequence[str]) -> list[str]:
    """A command line for people: `--token X`, `--api-key=X`, `HF_TOKEN=X` and tokens of known shape are hidden."""
    shown: list[str] = []
    hide_next, before = False, ""
    for argument in argv:
        flag, before = before, argument
        if hide_next and not argument.startswith("-"):
            shown.append(HIDDEN if _is_secret(flag, argument) else mask_text(argument))
            hide_next = False
            continue
        if flag in ("-u", "--user", "--proxy-user") and (pair := _USER.fullmatch(f"{flag} {argument}")):
            shown.append(pair[3] + HIDDEN)
            hide_next = False
            continue
        name, equals, _ = argument.partition("=")
        bare = _NAME.fullmatch(name.lstrip("-+"))
        hide_next = bool(not equals and argument.startswith("-") and bare and is_secret_name(name))
        # The whole rest of one argument is one value, spaces and all.
        secret = equals and bare and _is_secret(name, argument[len(name) + 1 :])
        shown.append(f"{name}={HIDDEN}" if secret else mask_text(argument))
    return shown


_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,100}")


_SECRET_LEAST: Final = 6  # shorter ones are words of every text


def secret_values(*environments: Mapping[str, str]) -> tuple[str, ...]:
    """What variables hold whose name says that it is secret, longest first; also as JSON and line by line."""
    found: set[str] = set()
    for environment in environments:
        for name, value in environment.items():
            if not is_secret_name(name):
                continue
            for part in (value, *(line for line in value.splitlines() if len(line) > 2 * _SECRET_LEAST)):
                found |= {part, _in_json(part)}
    return tuple(
        sorted((part for part in found if len(part.strip()) >= _SECRET_LEAST), key=lambda part: (-len(part), part))
    )


def _in_json(text: str) -> str:
    """As it stands in a JSON string, but for control characters, which no secret has."""
    return "".join("\\" + each if each in '\\"' else each for each in text)


def hide_values(text: str, values: Iterable[str]) -> str:
    """`text` with these values replaced, whatever name stands before them."""
    for value in values:
        if value in text:
            text = text.replace(value, HIDDEN)
    return text
