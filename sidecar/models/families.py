"""What a model's name says about its family and its limits.

Models of the same generation produce the same number of tokens for the same text. Calibrations are
stored by generation, and counts are approximated by generation. The table does not depend on
genai-prices, because loading that package would delay the first count by up to 0.8 s.

The sources are tiktoken's `model.py` for OpenAI, and the published vocabularies of open models.
Claude's tokenizer is not published, but its count endpoint shows that there are two generations:
models before Opus 4.7, and all later models.

The tables and their sources are in `limits.toml`.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Literal

from sidecar import typed
from sidecar.models.names import compiled, first_inside, first_match, parse

OPENAI_GENERATIONS = frozenset(
    ("o200k_base", "cl100k_base", "o200k_harmony", "openai-newer", "p50k_base", "r50k_base")
)
"""Generations of OpenAI models, whose chat templates and formulas are public."""
UNKNOWN = "unknown"
"""The generation for models that are not in the table."""

_ROWS: tuple[tuple[str, str, str | None], ...] = (
    # (pattern for the start of the bare name, generation, provider id of the vendor's API)
    (r"gpt-oss", "o200k_harmony", None),
    (r"gpt-?(4|3\.?5)-?t(urbo)?|gpt-?3\.?5|gpt-4(-|$)", "cl100k_base", "openai"),
    (r"text-embedding-(3|ada-002)|(davinci|babbage)-002", "cl100k_base", "openai"),
    (r"(chat)?gpt-?(4o|4[.-]1|4[.-]5|5)(?![a-z0-9])", "o200k_base", "openai"),
    (r"o[1-4](-|$)|codex-mini|computer-use", "o200k_base", "openai"),
    (r"(chat)?gpt-[4-9](\.\d+)?(?![a-z0-9])|o[5-9](-|$)", "openai-newer", "openai"),
    (
        r"(chat)?gpt-(audio|chat|image|latest|live|realtime|rosalind|transcribe)",
        "openai-newer",
        "openai",
    ),
    (r"gpt-(astra|cyber|luna|mini|nano|pro|sol|terra)-latest", "openai-newer", "openai"),
    (r"(text|code)-davinci-(edit-)?00[123]|code-(davinci|cushman)", "p50k_base", "openai"),
    (r"(text-)?(davinci|curie|babbage|ada)(-|$)|gpt2", "r50k_base", "openai"),
    (r"deepseek-(r1-)?(0528-)?(distill-)?llama", "llama3", None),
    (r"deepseek-(r1-)?(0528-)?(distill-)?qwen", "qwen3", None),
    (r"deepseek-r1-(1\.5|7|8|14|32)b", "qwen3", None),
    (r"deepseek-r1-70b", "llama3", None),
    (r"deepseek-(v2|coder|llm|moe|math|vl|67b|7b)", "deepseek-v2", None),
    (r"deepseek", "deepseek", "deepseek"),
    (r"qwen-?3\.[56]", "qwen3.5", None),
    (r"qwen-?(3\.[7-9]|3?-?max|[4-9](\.\d)?(-|$)(?!\d*b))", "qwen-newer", None),
    (r"qwen-?(vl-)?(max|plus|turbo|flash|long)", "qwen-newer", None),
    (r"qwen-?3(?![.\d])(?!b)|qwq", "qwen3", None),
    (r"qwen-?(1\.5|2\.5|2)(?![.\d])|qwen-?\d+([._]\d+)?b|qvq|codeqwen", "qwen2", None),
    (r"qwen(-?(vl|audio|coder|chat|instruct))?(-chat|-latest)?$", "qwen2", None),
    (r"qwen", "qwen-newer", None),
    (r"gemini|gemma|codegemma|paligemma|medgemma", "gemma", "google"),
    (r"(meta-)?llama-?(2|(7|13|30|33|65)b)|vicuna|tinyllama|alpaca", "llama2", None),
    (r"codellama", "codellama", None),
    (r"(meta-)?llama-?4", "llama4", None),
    (r"(meta-)?llama", "llama3", None),
    (r"mistral-(large-24|small-(2402|2409)|medium-2312|tiny|7b)", "mistral-v3", "mistral"),
    (r"pixtral-large|codestral-(22b|2405|mamba)|mathstral", "mistral-v3", "mistral"),
    (r"open-mi[sx]tral-(7b|8x)|mixtral", "mistral-v3", "mistral"),
    (r"(open-)?mistral|pixtral|ministral|devstral|magistral", "tekken", "mistral"),
    (r"voxtral|codestral|leanstral", "tekken", "mistral"),
    (r"grok", "grok", "x-ai"),
    (r"kimi|moonshot", "kimi", "moonshotai"),
    (r"(zai-)?glm|chatglm|codegeex", "glm", "zhipuai"),
    (r"minimax|m2-her", "minimax", "minimax"),
    (r"command|c4ai|aya", "command", "cohere"),
    (r"phi-?4-(mini|multimodal)", "o200k_base", None),
    (r"phi-?4", "cl100k_base", None),
    (r"phi-?3", "phi-3", None),
)
_INSIDE: tuple[tuple[str, str], ...] = (
    # A fine-tune's name often contains its base model's name.
    (r"llama-?[v-]?3|l3[.-]", "llama3"),
    (r"llama-?2", "llama2"),
    (r"qwen-?3|qwq", "qwen3"),
    (r"qwen-?2", "qwen2"),
    (r"mixtral|mistral-7b", "mistral-v3"),
    (r"mistral-(small|nemo)|nemo-12b", "tekken"),
    (r"gemma", "gemma"),
    (r"deepseek-(v3|r1|v4)", "deepseek"),
)

_DATE = re.compile(r"[-@]?(?:20\d{6}|20\d\d-\d\d-\d\d)")
_CLAUDE_VERSION = re.compile(r"(?<![\d.])(\d{1,2})(?:[.-](\d{1,2}))?(?![\d.])")
_CLAUDE_ALIASES = frozenset(("sonnet", "opus", "haiku", "fable", "mythos", "opusplan"))
_FAMILY_WORDS = frozenset(
    (
        *("gpt", "chatgpt", "claude", *_CLAUDE_ALIASES, "gemini", "gemma", "codegemma"),
        *("deepseek", "llama", "codellama", "vicuna", "mistral", "mixtral", "ministral"),
        *("devstral", "magistral", "codestral", "pixtral", "voxtral", "mathstral", "qwen"),
        *("codeqwen", "grok", "kimi", "moonshot", "glm", "chatglm", "minimax", "command"),
        "llava",  # a separate family, although its name is similar to llama
    )
)
"""Words in model names that identify a family. Similar words are treated as misspelled."""
_TIER_WORDS = frozenset(
    (
        *("turbo", "flash", "ultra", "code", "codex", "coder", "audio", "image", "vision"),
        *("instruct", "thinking", "reasoning", "realtime", "transcribe", "preview"),
        *("search", "research", "latest"),
    )
)
"""Words in the names of closed models. Similar words in these names are treated as misspelled."""
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
    if _is_nearly(first, _FAMILY_WORDS, _MISSPELLED):
        return True
    if is_claude:
        return any(_is_nearly(word, _CLAUDE_ALIASES, _MISSPELLED_TIER) for word in rest)
    known = _TIER_WORDS if _CLOSED.match(bare) else frozenset[str]()
    return any(_is_nearly(word, known, _MISSPELLED) for word in rest)


def _is_nearly(word: str, known: frozenset[str], likeness: float) -> bool:
    if len(word) < _SHORTEST or word in _FAMILY_WORDS or word in known or not known:
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
    for pattern, generation, provider in _ROWS:
        if compiled(pattern).match(bare):
            return generation, provider
    return first_inside(_INSIDE, bare) or UNKNOWN, None


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


Table = Literal["overruling", "windows", "windows-of-bases", "prompts", "replies"]
_WHOLE = 0
"""Marks models whose replies may use the rest of the context window."""


@cache
def _rows(table: Table) -> list[tuple[str, int]]:
    """Return a table's patterns and limits, in order."""
    return list(_tables()[table].items())


@cache
def _tables() -> dict[Table, dict[str, int]]:
    return typed.read_table("sidecar.models", "limits.toml", dict[Table, dict[str, int]])


def overruling_window(bare: str) -> int | None:
    """Return the context window that overrides the price list for a model, or None."""
    return first_match(_rows("overruling"), bare)


def published_window(bare: str) -> int | None:
    """Return a model's published context window in tokens, or None if it is unknown."""
    if is_misspelled(bare):
        return None
    found = first_match(_rows("windows"), bare)
    return first_inside(_rows("windows-of-bases"), bare) if found is None else found


@lru_cache(maxsize=4096)
def input_limit(bare: str) -> int | None:
    """Return a model's maximum prompt size in tokens if it is smaller than the window, or None."""
    return None if is_misspelled(bare) else first_match(_rows("prompts"), bare) or None


def max_output_of(bare: str) -> int | None:
    """Return a model's maximum reply size in tokens, or None if it is unknown."""
    tokens = None if is_misspelled(bare) else first_match(_rows("replies"), bare)
    return published_window(bare) if tokens == _WHOLE else tokens
