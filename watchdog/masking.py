"""Hides passwords, tokens and keys in command lines and texts that a person will see.

Responsible for what is shown, never for what is executed. Refuses to be clever about values alone: a value is hidden
because its name says that it is secret, because it has the shape of a well-known kind of token, or because a variable
with such a name is known to hold it (`secret_values`). What merely sounds alike (`--tokens 512`, `--tokenizer path`,
`token: 50257`) stays readable, since a command line that nobody can read helps nobody either. It lowers the risk; it
cannot promise to know every secret.
Each expression is compiled when a text needs it: all of them cost 3 ms, ten times that on a loaded machine, and
`status` needs few. None looks at a character more often than a fixed number of times: a text costs no more than its
length.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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
_CLOUDS: Final = frozenset({"amz", "goog", "access"})  # of a signed address: X-Amz-Signature, SharedAccessSignature


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _words(name: str) -> list[str]:
    found: list[str] = _compiled(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+").findall(name[:200])
    return [word.lower() for word in found]


def is_secret_name(name: str) -> bool:
    """Whether a flag, variable or key of this name holds a secret: `--api-key`, `HF_TOKEN`, `db.password`."""
    return _says_secret(_words(name))


def _says_secret(words: Sequence[str]) -> bool:
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
        case "signature":
            return before in _CLOUDS
    return False


# What stands behind a name that is only mostly a secret's: `--auth none`, `pass: 3`.
_PLAIN: Final = r"(?i)[\"']?(?:true|false|none|null|yes|no|on|off|[0-9]{1,6}(?:[./][0-9]{1,6})?%?)[\"']?"
_MOSTLY: Final = frozenset({"pass", "auth", "key"})
# The same of a name that is one such word and no option: of a tokenizer, a loop, a parser.
_COUNTED: Final = (
    r"(?i)[\"']?(?:[0-9]{1,11}|[^\sA-Za-z0-9]{1,3}|"
    r"(?:step|epoch|batch|phase|stage|rank|shard|layer)[-_#]?[0-9]{0,12})[\"']?"
)
_BARE: Final = frozenset({"token", "cookie", "cookies", "secrets", "pass", "credentials", "auth"})
_PATH: Final = r"(?:/[A-Za-z0-9_.\-]{1,255})+/?"
_RANDOM: Final = r"(?=[A-Za-z0-9]*[a-z])(?=[A-Za-z0-9]*[A-Z])(?=[A-Za-z0-9]*[0-9])[A-Za-z0-9]{10,}"


def _is_secret(name: str, value: str, *, option: bool = True) -> bool:
    """`option`: the name is one of a command line, and no word of a text."""
    words = _words(name)
    if not _says_secret(words):
        return False
    if words[-1] == "pwd" and _is_path(value):
        return False  # PROJECT_PWD is a folder
    word_of_a_text = not option and len(words) == 1 and words[0] in _BARE
    if (words[-1] in _MOSTLY or word_of_a_text) and _compiled(_PLAIN).fullmatch(value):
        return False
    return not word_of_a_text or (_compiled(_COUNTED).fullmatch(value) is None and not _is_path(value))


def _is_path(value: str) -> bool:
    """An absolute one, and none of whose parts looks drawn by lot: a secret may begin with a slash as well."""
    value = value.strip("\"'")
    return _compiled(_PATH).fullmatch(value) is not None and _compiled(_RANDOM).search(value) is None


# A known beginning, then enough of the rest to be no ordinary word: hf_transfer and sk-learn are not tokens.
_KINDS: Final = (
    *("hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "gldt-", "xoxa-", "xoxb-", "xoxe-"),
    *(
        "xoxo-",
        "xoxp-",
        "xoxr-",
        "xoxs-",
        "xapp-",
        "nvapi-",
        "dckr_pat_",
        "pypi-",
        "npm_",
        "sk-ant-",
        "sk-proj-",
        "sk-",
    ),
)
# Each alternative takes all that it has read, also where it turns out to be no token (`_hide_known`).
_KNOWN: Final = (
    r"(?<![A-Za-z0-9])(?:"
    rf"(?P<kind>{'|'.join(_KINDS)})(?P<body>[A-Za-z0-9_\-]{{8,}})"
    r"|(?P<aws>AKIA|ASIA)[0-9A-Z]{12,}"
    r"|(?P<google>AIza)[A-Za-z0-9_\-]{30,}"
    r"|(?P<telegram>[0-9]{8,10}:)AA[A-Za-z0-9_\-]{30,}"
    r"|(?P<jwt>eyJ)[A-Za-z0-9_\-]{8,}(?P<signed>\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*)?"
    r")"
)
_URL: Final = r"([A-Za-z][A-Za-z0-9+.\-]{0,30}://[^\s/:@\"']{0,200}:)[^\s/@\"']{1,500}@"
# A whole user that is no word: GitHub and Sentry take a token there.
_URL_USER: Final = r"(?i:(https?://))(?![a-z]{1,11}@)[^\s/:@\"'?#]{1,500}@"
_SIGNED: Final = r"(?i)([?&;](?:[a-z0-9\-]{0,40}-)?(?:sig|signature|credential)=)[^\s&\"'<>#]+"
_HOOK: Final = (
    r"(https://(?:hooks\.slack\.com/(?:services|workflows|triggers)|discord(?:app)?\.com/api/(?:v[0-9]{1,3}/)?webhooks"
    r"|outlook\.office(?:365)?\.com/webhook|[A-Za-z0-9\-]{1,60}\.webhook\.office\.com/webhookb2)/"
    r"|api\.telegram\.org/(?:file/)?bot[0-9]{0,20}:?)[^\s\"'<>/][^\s\"'<>]*"
)
_PAIR: Final = r"([\"']?(?![0-9]+:)[A-Za-z0-9_.@\-]{1,100}:)(?!//)[^\s\"']+"  # user:password, not uid:gid
_USER: Final = r"(?<!\S)(-u|--user|--proxy-user)([ =])" + _PAIR
_CURL_USER: Final = r"(?<!\S)(-[A-Za-z]{0,6}u|-U|--user|--proxy-user)([ =]?)" + _PAIR
_KEY_FILE: Final = r"(\"key\"\s{0,3}:\s{0,3}\")(?=[^\"]{0,100}[0-9])[A-Za-z0-9_+/=\-]{16,}\""  # kaggle.json
_COOKIE: Final = (
    r"(?i)\b((?:set-)?cookie\\{0,3}[\"']?\s{0,3}(?:=>|:)\s{0,3}\\{0,3}[\"']?)[^\r\n\"'=]{1,200}=[^\r\n\"']*"
)
_PEM: Final = "PRIVATE KEY-----"
_PEM_BEGIN: Final = r"-----BEGIN [A-Z ]{0,30}" + _PEM
_PEM_END: Final = r"-----END [A-Z ]{0,30}" + _PEM
_PEM_BODY: Final = r"(?:[A-Za-z0-9+/=]|\s|\\[nr])*\Z"
_HEADER: Final = (
    r"(?i)\b((?:proxy-)?authorization\\{0,3}[\"']?\s{0,3}(?:=>|[:=])\s{0,3}\\{0,3}[\"']?)"
    r"((?:(?:bearer|basic|token|digest)\s+)?)[^\s\"',]+"
)
_BEARER: Final = r"(?i)\b(bearer\s+)(?=[^\s]*[0-9])[A-Za-z0-9._~+/=\-]{8,}"
# Also quoted inside of another quotation, and where the end of it was cut off.
_VALUE: Final = (
    r"(\"(?:[^\"\\]|\\.){0,4000}+\"|'(?:[^'\\]|\\.){0,4000}+'|\\{1,3}[\"'][^\"']{0,4000}[\"']|[\"']?[^\s,;&\"'\)\}\]]+)"
)
# Names alone: what stands behind one is looked at for further names, unless it is hidden.
_ASSIGNED: Final = r"(-{0,2})([A-Za-z_][A-Za-z0-9_.\-]{0,100}+)\\{0,3}[\"']?\s{0,3}(?:=>|:=|==?|:)\s{0,3}(?!//)"
_FLAG: Final = r"(?<![A-Za-z0-9_.\-])(--?)([A-Za-z][A-Za-z0-9_.\-]{0,100}+)(?:[\"'],?\s{1,3}|\s{1,100})(?![\"']?-)"


def _hide_known(match: re.Match[str]) -> str:
    groups = match.groupdict()
    if body := groups["body"]:
        hidden = _compiled(r"[0-9A-Z]").search(body) is not None
    else:
        hidden = groups["jwt"] is None or groups["signed"] is not None
    kind = next(each for name, each in groups.items() if each and name not in ("body", "signed"))
    return kind + HIDDEN if hidden else match.group()


# What a text must hold, in small letters, for the expression to be worth its compiling; the expression; what is put in.
_RULES: Final[tuple[tuple[tuple[str, ...], str, str | Callable[[re.Match[str]], str]], ...]] = (
    (("://",), _URL, rf"\1{HIDDEN}@"),
    (("http",), _URL_USER, rf"\1{HIDDEN}@"),
    (("sig", "credential="), _SIGNED, rf"\1{HIDDEN}"),
    (("hooks.", "/webhook", ".telegram."), _HOOK, rf"\1{HIDDEN}"),
    (("curl",), _CURL_USER, rf"\1\2\3{HIDDEN}"),
    (("-u", "-user"), _USER, rf"\1\2\3{HIDDEN}"),
    (('"key"',), _KEY_FILE, rf'\1{HIDDEN}"'),
    (("cookie",), _COOKIE, rf"\1{HIDDEN}"),
    (("authorization",), _HEADER, rf"\1\2{HIDDEN}"),
    (("bearer",), _BEARER, rf"\1{HIDDEN}"),
    ((*_KINDS, "akia", "asia", "aiza", ":aa", "eyj"), _KNOWN, _hide_known),
)


def mask_text(text: str) -> str:
    """`text` with what looks secret replaced by `***`; names, users and the kind of a token stay."""
    text = without_keys(text)
    small = text.lower()
    for needles, pattern, put_in in _RULES:
        if any(needle in small for needle in needles):
            text = _compiled(pattern).sub(put_in, text)
    if "-" in text:
        text = _hide_named(text, _FLAG)
    return _hide_named(text, _ASSIGNED) if "=" in text or ":" in text else text


def _hide_named(text: str, pattern: str) -> str:
    names = _compiled(pattern)
    parts: list[str] = []
    done = at = 0
    while found := names.search(text, at):
        at = found.end()
        # The header rules have already dealt with these, and `Bearer` itself is no secret.
        if not is_secret_name(found[2]) or found[2].lower().endswith("authorization"):
            continue
        value = _compiled(_VALUE).match(text, at)
        if value is None or HIDDEN in value[1] or not _is_secret(found[2], value[1], option=bool(found[1])):
            continue
        quote = value[1][0] if value[1][0] in "\"'" else ""
        parts += [text[done:at], quote, HIDDEN, quote]
        done = at = value.end()
    return "".join((*parts, text[done:]))


def mask_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """As `mask_text`, of lines that belong together: a private key goes over many of them."""
    return tuple(mask_text("\n".join(lines)).split("\n"))


def without_keys(text: str) -> str:
    """`text` with private keys in PEM hidden, also where it begins or ends in the middle of one."""
    if _PEM not in text:
        return text
    parts: list[str] = []
    at = 0
    for begin in _compiled(_PEM_BEGIN).finditer(text):
        if begin.start() < at:
            continue
        end = _compiled(_PEM_END).search(text, begin.end())
        parts += [_without_rest(text[at : begin.start()]), begin.group(), HIDDEN]
        at = len(text) if end is None else end.end()
    return "".join((*parts, _without_rest(text[at:])))


def _without_rest(text: str) -> str:
    """The rest of a key whose beginning was cut off."""
    end = _compiled(_PEM_END).search(text)
    if end is None:
        return text
    lines = text[: end.start()].split("\n")
    while lines and _compiled(_PEM_BODY).match(lines[-1]):
        lines.pop()
    return "\n".join((*lines, HIDDEN + text[end.start() :]))


def mask_command(argv: Sequence[str]) -> list[str]:
    """A command line for people: `--token X`, `--api-key=X`, `HF_TOKEN=X` and tokens of known shape are hidden."""
    shown: list[str] = []
    hide_next, before = False, ""
    user = _CURL_USER if any(argument.rpartition("/")[2] == "curl" for argument in argv) else _USER
    for argument in argv:
        flag, before = before, argument
        if hide_next and not argument.startswith("-"):
            shown.append(HIDDEN if _is_secret(flag, argument) else mask_text(argument))
            hide_next = False
            continue
        hide_next = False
        if flag.startswith("-") and (pair := _compiled(user).fullmatch(f"{flag} {argument}")) and pair[1] == flag:
            shown.append(pair[3] + HIDDEN)
            continue
        if user is _CURL_USER and argument.startswith("-") and (pair := _compiled(user).fullmatch(argument)):
            shown.append(pair[1] + pair[2] + pair[3] + HIDDEN)
            continue
        hide_next = argument.startswith("-") and _is_name(argument.lstrip("-+")) and is_secret_name(argument)
        shown.append(_mask_argument(argument))
    return shown


def _mask_argument(argument: str) -> str:
    """The whole rest of one argument is one value, spaces and all: `--env=DB_PASSWORD=two words`."""
    at = 0
    for _ in range(_NESTED_MOST):
        name, equals, value = argument[at:].partition("=")
        if not equals or not _is_name(name.lstrip("-+")):
            break
        at += len(name) + 1
        if _is_secret(name, value):
            return argument[:at] + HIDDEN
    return mask_text(argument)


_NESTED_MOST: Final = 8


def _is_name(text: str) -> bool:
    return _compiled(r"[A-Za-z_][A-Za-z0-9_.\-]{0,100}").fullmatch(text) is not None


_SECRET_LEAST: Final = 6  # shorter ones are words of every text
_SURE_LEAST: Final = 12  # of these characters on no text holds it by chance, unless it is a number
_WORD: Final = r"[A-Za-z]+|[0-9]+|[A-Za-z]+[-_.][0-9]+"  # phase, 000001, step-0


def secret_values(*environments: Mapping[str, str]) -> tuple[str, ...]:
    """What variables hold whose name says that it is secret, longest first; also as JSON and line by line.

    Without what would take paths, steps and words out of every text: `PROJECT_PWD=/home/u/job`, `SWEEP_TOKEN=000001`.
    """
    found: set[str] = set()
    for environment in environments:
        for name, value in environment.items():
            if not is_secret_name(name):
                continue
            for part in (value, *(line for line in value.splitlines() if len(line) > 2 * _SECRET_LEAST)):
                if not _is_word(part.strip()):
                    found |= {part, _in_json(part)}
    return tuple(
        sorted((part for part in found if len(part.strip()) >= _SECRET_LEAST), key=lambda part: (-len(part), part))
    )


def _is_word(value: str) -> bool:
    return _is_path(value) or (len(value) < _SURE_LEAST and _compiled(_WORD).fullmatch(value) is not None)


def _in_json(text: str) -> str:
    """As it stands in a JSON string, but for control characters, which no secret has."""
    return "".join("\\" + each if each in '\\"' else each for each in text)


def hide_values(text: str, values: Iterable[str]) -> str:
    """`text` with these values replaced, whatever name stands before them; a short one not in the middle of a word."""
    for value in values:
        if value not in text:
            continue
        if len(value) >= _SURE_LEAST and not value.isdecimal():
            text = text.replace(value, HIDDEN)
        else:
            # Behind `\n` and `%3D` a word begins as well.
            begin = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2}))" if value[0].isalnum() else ""
            end = r"(?![A-Za-z0-9])" if value[-1].isalnum() else ""
            text = re.sub(begin + re.escape(value) + end, HIDDEN, text)
    return text
