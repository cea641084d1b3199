"""Secrets among a script's arguments, told by their options' names or their shape, and left out of what is kept.

``masked`` is for the arguments, ``without_secrets`` for any text that may repeat them: a traceback, a message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

MASK = "(hidden)"
"""Stands for a secret's value."""
_SECRET_WORDS = frozenset({
    "token", "password", "passwd", "passphrase", "pwd", "secret", "secrets", "credential", "credentials", "pat", "auth",
    "bearer", "sas", "apikey", "apikeys", "secretkey", "accesskey", "privatekey", "authorization", "passwords",
})  # fmt: skip
"""An option whose last word is one of them holds a secret."""
_OWNERS_OF_KEYS = frozenset({
    "api", "secret", "access", "private", "auth", "account", "encryption", "signing", "license", "subscription", "app",
    "service", "storage", "ssh", "sas", "client", "login", "wandb", "hf", "hub", "huggingface", "openai", "anthropic",
    "comet", "neptune", "clearml", "mlflow", "kaggle", "aws", "s3", "azure", "gcp", "gcs", "google", "github", "gitlab",
})  # fmt: skip
"""What a key is a secret of: other keys name a column, or give an order."""
_OF_DATA = frozenset({
    "sort", "primary", "foreign", "image", "label", "text", "target", "input", "output", "column", "group", "cache",
    "bucket", "object", "feature", "data", "dataset", "index", "partition",
})  # fmt: skip
"""What a key names a part of, whoever it belongs to."""
_SHORT = frozenset({"token", "pat", "auth", "sas"})
"""Words that are other things as well: a short number is a size, a switch or a shape."""
_KINDS_OF_AUTH = frozenset({
    "basic", "digest", "bearer", "token", "oauth", "oauth2", "oidc", "sigv4", "iam", "kerberos", "ldap", "gcloud",
    "anonymous", "default", "auto",
})  # fmt: skip
# Words that a language model reads, or that stand for a concept, and how many of them.
_OF_TEXT = frozenset({
    "pad", "eos", "bos", "unk", "sep", "cls", "mask", "special", "stop", "start", "end", "image", "max", "min", "num",
    "per", "extra", "new", "prompt", "placeholder", "initializer", "instance", "class", "modifier", "delimiter",
    "separator", "blank", "trigger", "language", "lang", "audio", "video", "visual", "vision", "speech", "speaker",
    "prefix", "suffix", "response", "assistant", "system", "tool", "first", "last", "next", "word", "text", "label",
    "target", "source", "src", "tgt", "input", "output", "concept", "subject", "style", "control", "query", "latent",
    "register", "sos", "sot", "eot", "unknown", "null", "empty", "dummy", "think", "thinking",
})  # fmt: skip
_PROSE = frozenset({
    "prompt", "prompts", "text", "texts", "title", "titles", "caption", "captions", "note", "notes", "instruction",
    "instructions", "message", "messages", "description", "question", "questions", "comment", "query",
})  # fmt: skip
"""An option whose last word is one of them is given what people say: a single word and a colon are no name and its
value, unless the word is in quotes."""
_STORES = frozenset({"s3", "gcs", "storage", "hub"})
"""Whose keys are the places of files as well."""
_ABSENT = frozenset({"no", "not", "without", "disable"})
_SPECIAL = re.compile(r"<.*>|\[.*\]|[^A-Za-z0-9]+")
"""A word that no text holds: it marks something for a language model."""
_FILE = re.compile(r"[\w./~-]*\.(?:json|ya?ml|toml|txt|pem|crt|cer|key|p12|cfg|ini|env)")
_COUNT = re.compile(r"[-+]?\d{1,6}(?:\.\d+)?")
_COUNTS = re.compile(rf"[\[(]?\s*{_COUNT.pattern}(?:[,\s]+{_COUNT.pattern})*\s*[\])]?")
_HARMLESS = frozenset({"", "true", "false", "yes", "no", "none", "null", "int", "str", "float", "bool", "string", MASK})
_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w+/=.-]{20,}")
_PART_OF_A_NAME = re.compile(r"[A-Za-z]*\d{0,4}[A-Za-z]?")
_IN_QUERIES = r"token|sig|signature|credential|key|secret|password|passwd|pwd|auth|accesskeyid|keyid|sas|pat"
# Each has one group, the secret.
_SHAPES = tuple(re.compile(pattern) for pattern in (
    r"\b(gh[pousr]_\w{4,})", r"\b(github_pat_\w{4,})", r"\b(glpat-[\w-]{8,})", r"\b(hf_[A-Za-z0-9]{20,})\b",
    r"\b((?:AKIA|ASIA)[A-Z0-9]{12,})\b", r"(?<![\w-])(sk-(?=[\w-]*\d)[\w-]{20,})", r"\b(xox[a-z]-[\w-]{6,})",
    r"\b(AIza[\w-]{30,})", r"\b(eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)",
    r"(?i)\bbearer[ :]+([^\s'\"]+)", r"(?i)\bauthorization: *(?:basic|token) +([^\s'\"]+)",
    r"://[^/\s:@]*:([^/\s]+)@", r"https?://((?=[^/\s:@]*\d)[\w-]{20,})@",
    rf"(?i)[?&;](?:[\w.-]*[_.-])?(?:[a-z]*(?:access|api))?(?:{_IN_QUERIES})=([^&;#\s'\"]+)",
    r"(?i)\b(?:AccountKey|SharedAccessKey|SharedAccessSignature)=([^;\s'\"]+)",
    r"(?i)(?:password|passwd|api[_-]?key|secret[_-]?key|access[_-]?key|client[_-]?secret|access[_-]?token|auth[_-]?token)"
    r"[\"']?\s*[:=]\s*[\"']([^\"'\s]+)[\"']",
))  # fmt: skip
"""What is a secret by itself, in whatever it stands: keys of services, and what addresses and headers carry."""
_NAME = r"[A-Za-z][\w.-]*"
_NEXT = rf"\s*[\"']?{_NAME}[\"']?\s*"
# In quotes up to their end; else up to a blank, a bracket, or a separator before which a value ends and a name follows.
_QUOTED = r"(?<=\")(?:[^\"\\]|\\.)+(?=\")|(?<=')(?:[^'\\]|\\.)+(?=')"
_MASKED = re.escape(MASK)


def _value(equals: str) -> str:
    """A value, and not a knob's place; ``equals`` is what stands between the next name and its value."""
    plain = rf"(?:[^\"',;&}}\])\s]|[,;&](?=[^\"',;&}}\])\s])(?!{_NEXT}{equals}))+"
    return rf"({_MASKED}|(?!\{{)(?:{_QUOTED}|{plain}))"


_IN_PAIRS, _IN_ENTRIES = _value(r"(?:=|:\s)"), _value("[=:]")
_BEGINS = rf"(?m:^)[ \t]*(?:- +)?(?:--?{_NAME}=)?"
# A colon, or an equals sign between blanks; a value on the next line is no name itself.
_COLON = rf"(?:[ \t]*:|[ \t]+=(?=\s))(?:[ \t]*|\s*(?!{_NAME}\s*[:=]))"


def _headers(begins: str, quote: str) -> Iterator[str]:
    """Of one that begins so and may hold several pairs, and of one that goes on to its line's end, or to the quote."""
    part = rf"[^\n{quote},;&]|[,;&](?!{_NEXT}[=:])"
    yield rf"{begins}({_NAME}){_COLON}({_MASKED}|(?=[^\s\"'{{])(?:{part})+)"
    yield rf"(?i){begins}((?:[\w.-]*-)?authorization){_COLON}({_MASKED}|[^\s\"'{{][^\n{quote}]*)"


_BY_EQUALS = (
    # Of NAME=VALUE and --NAME=VALUE, but for a knob's place; of an option and its value.
    re.compile(rf"(?:(?<![\w.{{-])|(?<=[\s\"']-)|(?<=[\s\"']--))(?=({_NAME})[\"']?=[\"']?{_IN_PAIRS})"),
    re.compile(rf"(?:^|\s)(--?{_NAME})\s+(?!-)[\"']?{_IN_PAIRS}"),
)
"""A name and its value within an argument that holds several."""
_BY_COLON = tuple(re.compile(pattern) for pattern in (
    # Of "NAME": VALUE, as in JSON, on a line of its own as well; of headers.
    rf"(?:{_BEGINS}|[,;{{\[]\s*)[\"']?({_NAME})[\"']?{_COLON}[\"']?{_IN_ENTRIES}",
    *_headers(_BEGINS, ""), *_headers("(?<=')", "'"), *_headers('(?<=")', '"'),
))  # fmt: skip
"""The same, with a colon, or an equals sign between blanks."""
_FURTHER = re.compile(rf"[,;&\s]{_NEXT}(?:=|:\s)")
"""Where another pair follows a value."""
_LEAST_OF_ENVIRONMENT = 8
"""Shorter values of the environment, such as a default password, are words that anything may hold."""
_LEAST_PART = 4
"""A part of so many letters is hidden as well where a text ends within a secret; shorter ones are hidden as words."""
_MOST_PASSES = 5
"""What is hidden may have held the quote that another value began or ended with."""
T = TypeVar("T")


def masked(argv: Sequence[str]) -> tuple[str, ...]:
    """The arguments with ``MASK`` in the place of each secret. Masking them twice changes nothing."""
    before = tuple(argv)
    for _ in range(_MOST_PASSES):
        now = _masked_once(before)
        if now == before:
            break
        before = now
    return before


def _masked_once(argv: Sequence[str]) -> tuple[str, ...]:
    result = list(argv)
    found = ((index, start, value) for index, start, name, value in _values(argv) if _is_secret(name, value))
    spans = [(index, start, start + len(value)) for index, start, value in found]
    kept = len(argv), 0
    for index, start, end in sorted(spans, key=lambda span: (span[0], span[2], -span[1]), reverse=True):
        if (index, end) <= kept:  # not within one that is masked
            result[index] = result[index][:start] + MASK + result[index][end:]
            kept = index, start
    return tuple(_without_shapes(argument) for argument in result)


def secret_options(argv: Sequence[str]) -> tuple[str, ...]:
    """The options whose values are taken for secrets, or hold one, as they are written."""
    taken = (name for _, _, name, value in _values(argv) if _is_secret(name, value) or _without_shapes(value) != value)
    return tuple(dict.fromkeys(taken))


def is_masked(argv: Sequence[str]) -> bool:
    """Whether a secret was taken out of these arguments: then they can't be run."""
    return any(MASK in argument for argument in argv)


def secrets_of_environment(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The variables that hold secrets, as arguments: ``NAME=value``."""
    return tuple(
        f"{name}={value}"
        for name, value in environment.items()
        if len(value) >= _LEAST_OF_ENVIRONMENT and name[:1].isalpha() and _is_secret(name, value)
    )


def without_secrets(text: str, argv: Sequence[str]) -> str:
    """The text with ``MASK`` for every secret of the arguments ``argv``, and for what is one by its shape."""
    for secret in _secrets(argv):
        if len(secret) < _LEAST_PART:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", MASK, text)
        else:
            text = _without_part(text.replace(secret, MASK), secret)
    return _without_shapes(text)


def all_without_secrets(value: T, argv: Sequence[str]) -> T:
    """A value of the model, or of JSON's kind, with every text in it as ``without_secrets`` leaves it."""
    hidden: Any = value
    if isinstance(value, str):
        hidden = value if isinstance(value, Enum) else without_secrets(value, argv)
    elif is_dataclass(value) and not isinstance(value, type):
        now = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        new = {name: all_without_secrets(part, argv) for name, part in now.items()}
        changed = {name: part for name, part in new.items() if part is not now[name]}
        hidden = replace(value, **changed) if changed else value
    elif isinstance(value, dict):
        hidden = {name: all_without_secrets(part, argv) for name, part in value.items()}
        hidden = value if all(hidden[name] is part for name, part in value.items()) else hidden
    elif type(value) in (list, tuple):
        parts: Any = value
        new_parts = [all_without_secrets(part, argv) for part in parts]
        same = all(one is other for one, other in zip(new_parts, parts, strict=True))
        hidden = value if same else type(parts)(new_parts)
    result: T = hidden
    return result


def _values(argv: Sequence[str]) -> Iterator[tuple[int, int, str, str]]:
    """Index of the argument, where in it the value begins, option and value.

    Of ``--name value``, ``--name=value`` and ``name=value``, and of such pairs within an argument.
    """
    for index, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        before = argv[index - 1] if index else ""
        follows = before.startswith("-") and "=" not in before and not argument.startswith("-")
        is_option = name.startswith("-")
        if follows:
            yield index, 0, before, argument
        if equals and re.fullmatch(rf"[-+]*{_NAME}", name) and (is_option or not _FURTHER.search(value)):
            yield index, len(name) + 1, name, value
        words = _words(name if is_option else before if follows else "")
        pairs = [match for pattern in _BY_EQUALS for match in pattern.finditer(argument)]
        named = (match for pattern in _BY_COLON for match in pattern.finditer(argument))
        pairs += named if not _PROSE & {*words[-1:]} else (match for match in named if not _is_word(match))
        yield from ((index, match.start(2), match[1], match[2]) for match in pairs)


def _is_word(match: re.Match[str]) -> bool:
    """Whether a name before a colon may be a word that people say: a single one, and not in quotes by itself."""
    around = match.string[match.start(1) - 1 : match.start(1)] + match.string[match.end(1) : match.end(1) + 1]
    return len(_words(match[1])) == 1 and around not in ('""', "''")


def _is_secret(name: str, value: str) -> bool:
    words = _words(name)
    if not words or value.lower() in _HARMLESS or re.match(r"\{.*\}", value):
        return False  # a switch, or a knob's place
    *before, last = words
    if _ABSENT & {*before[:1]} or _FILE.fullmatch(value):
        return False
    if last in _SHORT and _COUNT.fullmatch(value):
        return False
    if last == "keys" and _COUNTS.fullmatch(value):
        return False  # a key's number, or several
    if last in ("key", "keys"):
        owned = not _OF_DATA & {*before[-1:]} and bool(_OWNERS_OF_KEYS & {*before[-2:]})
        place = "/" in value and bool(_STORES & {*before[-1:]})
        return (owned and not place) or _is_random(value)
    if last == "token" and (_OF_TEXT & {*before[-1:]} or _SPECIAL.fullmatch(value)):
        return False
    if last in ("auth", "authorization") and value.lower() in _KINDS_OF_AUTH:
        return False
    if last == "pat" and set(value) & set("*?[]^$\\"):
        return False  # a pattern
    if last == "pwd" and value.startswith(("/", ".", "~")):
        return False  # a folder
    return last in _SECRET_WORDS


def _is_random(value: str) -> bool:
    """Whether letters and digits alternate in it, other than in a name with a number."""
    parts = re.split(r"[_./=+-]", value)
    return _RANDOM.fullmatch(value) is not None and not all(_PART_OF_A_NAME.fullmatch(part) for part in parts)


def _words(name: str) -> list[str]:
    """The words that an option's name is made of: of ``--hubToken``, ``hub_token`` and ``hub.token`` two."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.lstrip("-+"))
    return [word.lower() for word in re.split(r"[-_.]", apart) if word]


def _without_shapes(text: str) -> str:
    for shape in _SHAPES:
        text = shape.sub(_mask_group, text)
    return text


def _mask_group(match: re.Match[str]) -> str:
    start, end = match.start(1) - match.start(), match.end(1) - match.start()
    return match[0][:start] + MASK + match[0][end:]


def _secrets(argv: Sequence[str]) -> list[str]:
    """The secrets themselves, and how they look in a text that quotes them; the longest first."""
    hidden = [(name, value) for _, _, name, value in _values(argv) if _is_secret(name, value)]
    found = {value for _, value in hidden} | {part for name, value in hidden for part in _parts(name, value)}
    for argument in argv:
        found |= {match[1] for shape in _SHAPES for match in shape.finditer(argument)} - {MASK}
    found |= {inner for secret in found if (inner := _unescaped(secret))}
    quoted = {repr(secret)[1:-1] for secret in found}
    joined = {" ".join(secret.split()) for secret in found}  # as a message on one line has it
    return sorted((found | quoted | joined) - {""}, key=lambda secret: (-len(secret), secret))


def _parts(name: str, value: str) -> list[str]:
    """What a value may hold beside other things: the part before its first separator; of several secrets each."""
    parts = [part.strip(" []()'\"") for part in re.split("[,;&]", value)]
    several = _words(name)[-1].endswith("s")
    return [part for part in parts[: None if several else 1] if len(part) >= _LEAST_PART and part != MASK]


def _unescaped(secret: str) -> str:
    """The secret as whoever reads the JSON around it has it; "" where it can't have stood in JSON."""
    try:
        return str(json.loads(f'"{secret}"')) if "\\" in secret else ""
    except ValueError:
        return ""


def _without_part(text: str, secret: str) -> str:
    """The text without the secret's beginning, where it was cut within the secret."""
    if not text.endswith("…"):
        return text
    for length in range(len(secret) - 1, _LEAST_PART - 1, -1):
        if text.endswith(f"{secret[:length]}…"):
            return f"{text[: -length - 1]}{MASK}…"
    return text
