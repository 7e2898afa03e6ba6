"""Parses the model names used by APIs, gateways, local runners and people, and finds families.

Parts that are not recognized remain unchanged. The families, vendors and hosts are in `names.json`.
The table does not depend on genai-prices, because loading that package would delay the first count
by up to 0.8 s.

Models of the same generation produce the same number of tokens for the same text. Calibrations are
stored by generation, and counts are approximated by generation. The sources are tiktoken's
`model.py` for OpenAI, and the published vocabularies of open models. Claude's tokenizer is not
published, but its count endpoint shows that there are two generations: models before Opus 4.7, and
all later models.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import NamedTuple, TypeVar

import msgspec

from sidecar import typed
from sidecar.text.globs import MAX_LENGTH, matches_any

T = TypeVar("T")

LOCAL_PROVIDERS = frozenset(
    ("ollama", "llamacpp", "lmstudio", "vllm", "sglang", "tgi", "localai", "koboldcpp")
)
"""Providers that run on the user's own machine. They are not in the price list."""

CREDIT_PROVIDERS = frozenset(("github-copilot",))
"""Providers that bill in credits instead of a currency."""


class Family(NamedTuple):
    """Models with the same tokenizer generation."""

    pattern: str
    generation: str
    provider: str | None = None
    """The provider id of the vendor's API."""


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """What `names.json` says about models. All patterns match bare names."""

    families: list[Family]
    """The first family whose pattern matches the start of a name is used."""
    bases: list[tuple[str, str]]
    """Patterns of base models in the names of fine-tunes, and their generations."""
    approximated_as: dict[str, str]
    """Generations that share the approximation of another in `counting/estimates.json`.

    They differ from it only in added tokens, or have no published vocabulary. `modern` is fitted to
    all modern vocabularies together.
    """
    words: frozenset[str]
    """Words that identify a family. Similar words are treated as misspelled."""
    closed_words: frozenset[str]
    """Words in closed models' names. Similar words in these names are treated as misspelled."""
    not_for_chat: list[str]
    """Parts of the ids of models that are not meant for chat."""
    retired: list[str]
    """Patterns for the start of retired models' names, according to docs/reference/sources.md."""
    hosts: dict[str, str]
    """Provider names that may be the first segment of a model name, and the price list's ids.

    Vendors are not listed, because `vendor/model`, as in `openai/gpt-5`, is OpenRouter's notation.
    """
    makers: list[str]
    """The price list's ids of vendors."""
    provider_names: dict[str, str]
    """Other provider names that people and agents use, and the price list's ids."""


@cache
def facts() -> Facts:
    """Return what is known about models."""
    return typed.read_table("sidecar.models", "names.json", Facts)


@cache
def known_providers() -> dict[str, str]:
    """Return the price list's id for each provider name that people and agents use."""
    hosts = facts().hosts
    ids = (*facts().makers, *hosts.values(), *LOCAL_PROVIDERS, *CREDIT_PROVIDERS)
    return {one: one for one in ids} | hosts | facts().provider_names


_QUANTISATION = re.compile(
    r"""[-._](?:ud[-_])?
        (?:i?q\d\w*|[bf]p?(?:16|32|8)|mxfp4\w*|tq\d\w*|imat\w*|awq|gptq|[48]bit|gguf)
        (?:[-._](?:xl|[lms]))?$""",
    re.VERBOSE | re.IGNORECASE,
)
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_BEDROCK = re.compile(
    r"^(?:(?:us|eu|ap|apac|au|jp|ca|sa|us-gov|global|regional)\.)?"
    r"(?:anthropic|meta|mistral|amazon|cohere|ai21|deepseek|qwen|openai|google|moonshotai?|minimax"
    r"|zai|nvidia|writer|stability|twelvelabs)\.(?P<bare>.+?)(?:-v\d+)?(?::\d+)?(?::\d+k)?$"
)
_OLLAMA_TAG = re.compile(
    r"^(?:latest|cloud|e?\d+(?:\.\d+)?[mbt](?:-.*)?|\d+x\d+b.*|.*-q\d.*|.*-fp16|mini|medium|small)$"
)
_WINDOW_MARK = re.compile(r"\[(\d{1,3})m\]", re.IGNORECASE)
"""Matches Claude Code's mark for a larger context window, as in `claude-opus-5[1m]`.

Claude Code accepts it anywhere in a model's name, and removes it before a request.
"""
_ROUTES = frozenset(
    ("free", "beta", "nitro", "floor", "online", "extended", "thinking", "exacto", "batch")
)


class Name(msgspec.Struct, frozen=True):
    """The parts of a model name."""

    provider: str | None
    """A genai-prices id or a local provider, or None if the name does not include a provider."""
    bare: str
    """The model name in lower case, without provider, route, quantisation and file extension."""
    host_id: str
    """The model's id in the provider's price list."""
    written: str = ""
    """The model name as written, without the mark for a larger window."""
    window: int | None = None
    """The context window in tokens, if the name contains it, as in `claude-opus-5[1m]`."""


def parse(model: str) -> Name:
    """Parse a model name. Never raises.

    Only the first `MAX_LENGTH` characters are used, because names may come from untrusted files.
    """
    return _parse_name(model[:MAX_LENGTH])


@lru_cache(maxsize=4096)
def _parse_name(model: str) -> Name:
    mark, text = _WINDOW_MARK.search(model), _WINDOW_MARK.sub("", model).strip()
    return msgspec.structs.replace(
        _parse_text(text), written=text, window=int(mark[1]) * 1_000_000 or None if mark else None
    )


def _parse_text(text: str) -> Name:
    if text.lower().endswith(".gguf"):
        return _parse_gguf_name(text)
    if text.startswith("arn:"):
        return Name("aws", _bare_name(text.rpartition("/")[2]), text.rpartition("/")[2])
    if text.startswith("@cf/"):
        return Name("cloudflare", _bare_name(text.rpartition("/")[2]), text)
    head, slash, rest = text.lstrip("~").partition("/")
    if not slash:
        return _parse_plain(text)
    return _parse_with_slash(text, head.lower(), rest)


_DATE = re.compile(r"[-@](?:20\d{6}|20\d\d-\d\d-\d\d)$")


def undated_name(model: str) -> str:
    """Return a model's name without the date at its end: `gpt-5` for `gpt-5-2025-08-07`."""
    return _DATE.sub("", model)


def short_name(model: str) -> str:
    """Return a model's name without provider, date and `claude-` prefix, such as `opus-5`."""
    name = undated_name(parse(model).bare)
    return name.removeprefix("claude-") or model


def short_names(models: Iterable[str]) -> dict[str, str]:
    """Return each model's short name, or its full name if several models share the short name.

    A dated name and the same name without its date refer to one model.
    """
    short = {model: short_name(model) for model in models}
    dated = {undated_name(model) for model in short if undated_name(model) != model}
    uses = Counter(name for model, name in short.items() if model not in dated)
    return {model: name if uses[name] == 1 else model for model, name in short.items()}


def same_model(asked: str, loaded: str) -> bool:
    """Return whether two names refer to models with the same tokenizer.

    Case, folder, provider, `.gguf`, shard, quantisation and `:latest` are ignored.
    """
    return bool(_name_forms(asked) & _name_forms(loaded))


def matches(model: str, globs: Iterable[str]) -> bool:
    """Return whether a model matches any of the globs. Case is ignored.

    The globs are compared with the full name, with the part after the last slash, and with the
    bare name. For example, `qwen-*` matches `ollama/qwen-7b` and `qwen-7b-Q4_K_M.gguf`.
    """
    name = parse(model)
    return matches_any(globs, (name.written, name.written.rpartition("/")[2], name.bare))


def is_for_chat(model: str) -> bool:
    """Return whether a model is meant for chat, as far as its id says."""
    return not any(part in model for part in facts().not_for_chat)


def is_retired(model: str) -> bool:
    """Return whether a model's vendor has retired it.

    The price list still includes such models so that old calls can be priced.
    """
    name = parse(model).bare
    return any(compiled(pattern).match(name) for pattern in facts().retired)


def _name_forms(name: str) -> set[str]:
    full = parse(name).written.lower().replace("\\", "/")
    names = (full, full.rpartition("/")[2])
    return {
        _without_quantisation(one.removesuffix(":latest").removesuffix(".gguf")) for one in names
    } - {""}


def _without_quantisation(stem: str) -> str:
    stem = _SHARD.sub("", stem)
    while (shorter := _QUANTISATION.sub("", stem)) != stem:
        stem = shorter
    return stem


def _parse_gguf_name(text: str) -> Name:
    stem = re.split(r"[\\/]", text)[-1][: -len(".gguf")]
    return Name("llamacpp", _without_quantisation(stem).lower(), stem)


def _parse_with_slash(text: str, head: str, rest: str) -> Name:
    bare = _bare_name(rest.rpartition("/")[2])
    if head in LOCAL_PROVIDERS:
        return Name(head, bare, rest)
    if host := facts().hosts.get(head):
        return Name(host, bare, rest)
    if head == "accounts":
        return Name("fireworks", re.sub(r"(\d)p(\d)", r"\1.\2", bare), text)
    if head in ("models", "publishers", "projects", "tunedmodels"):
        return Name("google", bare, text.rpartition("/")[2])
    return Name("openrouter", bare, text.lstrip("~"))


def _parse_plain(text: str) -> Name:
    lower = text.lower()
    if "@" in lower:
        return Name("google", _bare_name(lower.partition("@")[0]), text)
    name, colon, tag = lower.partition(":")
    if colon and _OLLAMA_TAG.match(tag) and not _BEDROCK.match(lower):
        return Name(
            "ollama", _bare_name(name if tag in ("latest", "cloud") else f"{name}-{tag}"), text
        )
    return Name("aws" if _BEDROCK.match(lower) else None, _bare_name(lower), text)


def _bare_name(name: str) -> str:
    lower = name.lower()
    if lower.startswith("ft:"):
        return lower.split(":")[1]
    bedrock = _BEDROCK.match(lower)
    if bedrock:
        return bedrock["bare"]
    stem, colon, tag = lower.partition(":")
    if colon and tag in _ROUTES:
        return stem
    return lower.partition("@")[0].replace(":", "-")


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern on first use.

    Compiling all patterns would take 30 ms, and most names need only a few.
    """
    return re.compile(pattern)


def first_match(rows: Iterable[tuple[str, T]], name: str) -> T | None:
    """Return the value of the first row whose pattern matches the start of `name`, or None."""
    return next((value for pattern, value in rows if compiled(pattern).match(name)), None)


def first_inside(rows: Iterable[tuple[str, T]], name: str) -> T | None:
    """Return the value of the first row whose pattern occurs anywhere in `name`, or None."""
    return next((value for pattern, value in rows if compiled(pattern).search(name)), None)


OPENAI_GENERATIONS = frozenset(
    ("o200k_base", "cl100k_base", "o200k_harmony", "openai-newer", "p50k_base", "r50k_base")
)
"""Generations of OpenAI models, whose chat templates and formulas are public."""
UNKNOWN = "unknown"
"""The generation for models that are not in the table."""

_ANY_DATE = re.compile(r"[-@]?(?:20\d{6}|20\d\d-\d\d-\d\d)")
_CLAUDE_VERSION = re.compile(r"(?<![\d.])(\d{1,2})(?:[.-](\d{1,2}))?(?![\d.])")
_CLAUDE_ALIASES = frozenset(("sonnet", "opus", "haiku", "fable", "mythos", "opusplan"))
_CLOSED = re.compile(r"(chat)?gpt|gemini|grok")
"""Matches closed models. They have no fine-tunes whose names could contain arbitrary words."""
_GLUED = re.compile(
    r"(?:grok|gemini)\d|(?:chat)?gpt-?\d(?:\.\d+)?(?!o(?![a-z]))[a-z]{1,2}(?![a-z])"
)
"""Matches a version without a hyphen (`grok4`) or with an unknown suffix (`gpt-4oo`)."""
_MISSPELLED = 0.8
"""How similar (0 to 1) a word must be to a known word to be treated as a misspelling."""
_MISSPELLED_TIER = 0.75
"""How similar (0 to 1) a word must be to a Claude tier's name. One letter in four may differ."""
_SHORTEST = 4
"""The minimum number of letters for a word to be checked for typos."""
_TWO_DIGITS = re.compile(
    r"""(?!gpt-?35)
    (?:(?:chat)?gpt|(?:claude|gemini)(?:-[a-z]+)?|grok|(?:zai-|chat)?glm|deepseek-v|kimi-k
      |minimax-m|(?:code)?qwen|(?:meta-|code)?llama(?:-v)?|(?:code|med)?gemma|phi
      |(?:mis|minis|magis|devs|codes)tral(?:-(?:small|medium|large))?)
    -?\d\d(?![\d.]|[bm](?![a-z\d]))""",
    re.VERBOSE,
)
"""Matches a version without its dot, such as `gpt-55`.

Two digits before `b` or `m` do not match, because they are the number of parameters.
"""
_CLAUDE_WITHOUT_VERSION = re.compile(
    r"claude(-latest)?$|claude-(.*-)?(opus|sonnet|haiku|fable|mythos|instant)(?![a-z])"
)
"""Matches valid Claude names without a version. All others are treated as misspelled."""
_GEMINI_BEFORE_3 = re.compile(r"gemini-(.*-)?[12](\.|-|$)|gemini-pro(-vision)?$|.*gemma")
_CLAUDE_NEW = (4, 7)
"""The first version with Claude's new tokenizer, which is Opus 4.7."""


def generation_of(model: str) -> str:
    """Return a model's tokenizer generation, such as `o200k_base`, `claude-4.7` or `llama3`.

    Returns `unknown` if the model is not in the table, or if its name is misspelled.
    """
    return _find_row(parse(model).bare)[0]


def without_date(bare: str) -> str:
    """Remove the release date from a model name: `claude-sonnet-4-5-20250929` loses `-20250929`."""
    return _ANY_DATE.sub("", bare)


def maker_of(model: str) -> str | None:
    """Return the provider id of the model's vendor, or None if it is unknown."""
    return _find_row(parse(model).bare)[1]


@lru_cache(maxsize=4096)
def is_misspelled(bare: str) -> bool:
    """Return whether a name looks like a typo in a known family's name.

    Examples are `gpt-55` and `gpt-5-trubo`.
    """
    if _TWO_DIGITS.match(bare) or _GLUED.match(bare) or _is_unknown_claude(bare):
        return True
    first, *rest = re.findall("[a-z]+", bare) or [""]
    is_claude = bare.startswith("claude")
    if _is_nearly(first, facts().words, _MISSPELLED):
        return True
    if is_claude:
        return any(_is_nearly(word, _CLAUDE_ALIASES, _MISSPELLED_TIER) for word in rest)
    known = facts().closed_words if _CLOSED.match(bare) else frozenset[str]()
    return any(_is_nearly(word, known, _MISSPELLED) for word in rest)


def _is_nearly(word: str, known: frozenset[str], likeness: float) -> bool:
    if len(word) < _SHORTEST or word in facts().words or word in known or not known:
        return False
    from difflib import get_close_matches  # imported lazily, because it takes 10 ms

    return bool(get_close_matches(word, known, 1, likeness))


def _is_unknown_claude(bare: str) -> bool:
    if not bare.startswith("claude") or _CLAUDE_WITHOUT_VERSION.match(bare):
        return False
    return claude_version(bare) is None


@lru_cache(maxsize=4096)
def _find_row(bare: str) -> tuple[str, str | None]:
    if is_misspelled(bare):
        return UNKNOWN, None
    if "claude" in bare or bare.split("-")[0] in _CLAUDE_ALIASES:
        return _claude_generation(bare), "anthropic"
    for family in facts().families:
        if compiled(family.pattern).match(bare):
            return family.generation, family.provider
    return first_inside(facts().bases, bare) or UNKNOWN, None


def _claude_generation(bare: str) -> str:
    """Return `claude` for models before Opus 4.7, and `claude-4.7` for all others."""
    version = claude_version(bare)
    if version is None:
        return "claude" if re.search(r"claude-(v1|instant)", bare) else "claude-4.7"
    return "claude-4.7" if version >= _CLAUDE_NEW else "claude"


def claude_version(bare: str) -> tuple[int, int] | None:
    """Return the version in a Claude name, such as (4, 5) for `claude-sonnet-4-5`, or None."""
    found = _CLAUDE_VERSION.search(_ANY_DATE.sub("", bare))
    return (int(found[1]), int(found[2] or 0)) if found else None


def counts_as_gemini_3(bare: str) -> bool:
    """Return whether a Gemini model counts media as Gemini 3 does. True for unknown versions."""
    return _GEMINI_BEFORE_3.match(bare) is None
