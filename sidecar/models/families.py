"""What a model's name says about its family and its limits.

Models of the same generation produce the same number of tokens for the same text. Calibrations are
stored by generation, and counts are approximated by generation. The table does not depend on
genai-prices, because loading that package would delay the first count by up to 0.8 s.

The sources are tiktoken's `model.py` for OpenAI, and the published vocabularies of open models.
Claude's tokenizer is not published, but its count endpoint shows that there are two generations:
models before Opus 4.7, and all later models.

The families are in `names.json`, the limits and their sources in `limits.toml`.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Literal

from sidecar import typed
from sidecar.models.names import compiled, facts, first_inside, first_match, parse

OPENAI_GENERATIONS = frozenset(
    ("o200k_base", "cl100k_base", "o200k_harmony", "openai-newer", "p50k_base", "r50k_base")
)
"""Generations of OpenAI models, whose chat templates and formulas are public."""
UNKNOWN = "unknown"
"""The generation for models that are not in the table."""

_DATE = re.compile(r"[-@]?(?:20\d{6}|20\d\d-\d\d-\d\d)")
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
_CLAUDE_LINE = re.compile("opus|sonnet|haiku")
_CLAUDE_NEW = (4, 7)
"""The first version with Claude's new tokenizer, which is Opus 4.7."""


def generation_of(model: str) -> str:
    """Return a model's tokenizer generation, such as `o200k_base`, `claude-4.7` or `llama3`.

    Returns `unknown` if the model is not in the table, or if its name is misspelled.
    """
    return _find_row(parse(model).bare)[0]


def without_date(bare: str) -> str:
    """Remove the release date from a model name: `claude-sonnet-4-5-20250929` loses `-20250929`."""
    return _DATE.sub("", bare)


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
    found = _CLAUDE_VERSION.search(_DATE.sub("", bare))
    return (int(found[1]), int(found[2] or 0)) if found else None


def counts_as_gemini_3(bare: str) -> bool:
    """Return whether a Gemini model counts media as Gemini 3 does. True for unknown versions."""
    return _GEMINI_BEFORE_3.match(bare) is None


Table = Literal[
    "overruling", "windows", "windows-of-bases", "prompts", "replies", "claude-tool-prompts"
]  # fmt: skip
_WHOLE = 0
"""Marks models whose replies may use the rest of the context window."""


@cache
def _tables() -> dict[Table, dict[str, int]]:
    return typed.read_table("sidecar.models", "limits.toml", dict[Table, dict[str, int]])


def overruling_window(bare: str) -> int | None:
    """Return the context window that overrides the price list for a model, or None."""
    return first_match(_tables()["overruling"].items(), bare)


def published_window(bare: str) -> int | None:
    """Return a model's published context window in tokens, or None if it is unknown."""
    if is_misspelled(bare):
        return None
    found = first_match(_tables()["windows"].items(), bare)
    return first_inside(_tables()["windows-of-bases"].items(), bare) if found is None else found


@lru_cache(maxsize=4096)
def input_limit(bare: str) -> int | None:
    """Return a model's maximum prompt size in tokens if it is smaller than the window, or None."""
    return None if is_misspelled(bare) else first_match(_tables()["prompts"].items(), bare) or None


def max_output_of(bare: str) -> int | None:
    """Return a model's maximum reply size in tokens, or None if it is unknown."""
    tokens = None if is_misspelled(bare) else first_match(_tables()["replies"].items(), bare)
    return published_window(bare) if tokens == _WHOLE else tokens


def claude_tool_prompt(bare: str) -> int | None:
    """Return the tokens of the system prompt that Claude gets with tools, or None if unknown."""
    line, version = _CLAUDE_LINE.search(bare), claude_version(bare)
    if line is None or version is None:
        return None
    return _tables()["claude-tool-prompts"].get("{}-{}.{}".format(line[0], *version))
