"""Tokenizer families: from a model's name to the vocabulary it was trained with, by a small table.

The table answers at once (genai-prices, which knows windows and prices, takes most of a second to
import), so that a first count never waits for it. A row is a *generation*: models whose texts cost
the same number of tokens. Calibration is kept by generation, and approximations have one factor
for each.

Sources: tiktoken's `model.py` for OpenAI; the makers' published vocabularies for open models; for
Claude, whose tokenizer is not published, the two generations that its count endpoint shows
(before Opus 4.7, and since).
"""

from __future__ import annotations

import re
from functools import lru_cache

from sidecar.models.names import parse
from sidecar.models.patterns import compiled, first_inside

OPENAI_GENERATIONS = frozenset(
    ("o200k_base", "cl100k_base", "o200k_harmony", "openai-newer", "p50k_base", "r50k_base")
)
"""Those of OpenAI's models, whose templates and formulas it publishes."""
UNKNOWN = "unknown"
"""The generation of a model that no row knows."""

_ROWS: tuple[tuple[str, str, str | None], ...] = (
    # (pattern that the bare name begins with, generation, the maker's own provider id)
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
    (r"deepseek-(r1-)?(0528-)?(distill-)?qwen", "qwen2", None),
    (r"deepseek-r1-(1\.5|7|8|14|32)b", "qwen2", None),
    (r"deepseek-r1-70b", "llama3", None),
    (r"deepseek-(v2|coder|llm|moe|math|vl|67b|7b)", "deepseek-v2", None),
    (r"deepseek", "deepseek", "deepseek"),
    (r"qwen-?3\.[56]", "qwen3.5", None),
    (r"qwen-?(3\.[7-9]|3?-?max|[4-9](\.\d)?(-|$)(?!\d*b))", "qwen-newer", None),
    (r"qwen-?(vl-)?(max|plus|turbo|flash|long)", "qwen-newer", None),
    (r"qwen-?(1\.5|2\.5|2|3)(?![.\d])|qwen-?\d+([._]\d+)?b|qwq|qvq|codeqwen", "qwen2", None),
    (r"qwen(-?(vl|audio|coder|chat|instruct))?(-chat|-latest)?$", "qwen2", None),
    (r"qwen", "qwen-newer", None),
    (r"gemini|gemma|codegemma|paligemma|medgemma", "gemma", "google"),
    (r"(meta-)?llama-?2|codellama|vicuna|tinyllama|alpaca", "llama2", None),
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
    (r"phi-?3", "llama2", None),
)
_INSIDE: tuple[tuple[str, str], ...] = (
    # Fine-tunes carry the name of what they were made from inside theirs.
    (r"llama-?[v-]?3|l3[.-]", "llama3"),
    (r"llama-?2", "llama2"),
    (r"qwen-?2|qwen-?3|qwq", "qwen2"),
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
        "llava",  # a family of its own, one letter from another
    )
)
"""Words that makers' names are made of."""
_MISSPELT = 0.8
"""Likeness of two words, 1 for equal ones, from which one may be a misspelling of the other."""
_TWO_DIGITS = re.compile(
    r"""(?!gpt-?35)
    (?:(?:chat)?gpt|(?:claude|gemini)(?:-[a-z]+)?|grok|(?:zai-|chat)?glm|deepseek-v|kimi-k
      |minimax-m|(?:code)?qwen|(?:meta-|code)?llama(?:-v)?|(?:code|med)?gemma|phi
      |(?:mis|minis|magis|devs|codes)tral(?:-(?:small|medium|large))?)
    -?\d\d(?![\d.]|[bm](?![a-z\d]))""",
    re.VERBOSE,
)
"""A version like `gpt-55`: no maker has come that far, but a dot is easily forgotten. Two digits
before `b` or `m` are a number of parameters."""
_CLAUDE_WITHOUT_VERSION = re.compile(
    r"claude(-latest)?$|claude-(.*-)?(opus|sonnet|haiku|fable|mythos|instant)(?![a-z])"
)
"""Names that are Claude's without a version number. A name with one may be a future model."""
_GEMINI_BEFORE_3 = re.compile(r"gemini-(.*-)?[12](\.|-|$)|gemini-pro(-vision)?$|.*gemma")
_CLAUDE_NEW = (4, 7)
"""Opus 4.7 brought a new tokenizer, which every later Claude has kept."""


def generation_of(model: str) -> str:
    """The tokenizer generation of a model, such as `o200k_base`, `claude-4.7` or `llama3`.

    `unknown` where no row knows the model, or its name is misspelt. `sidecar.counting.tokenizers`
    decides whether its vocabulary can be run here, and what counts in its place.
    """
    return _row(parse(model).bare)[0]


def undated(bare: str) -> str:
    """A bare name without its release date: `claude-sonnet-4-5`, not `…-20250929`."""
    return _DATE.sub("", bare)


def maker_of(model: str) -> str | None:
    """The provider id of the maker's own API, for a name that does not say who serves it."""
    return _row(parse(model).bare)[1]


@lru_cache(maxsize=4096)
def is_misspelt(bare: str) -> bool:
    """Whether a bare name nearly has a family's form: `gpt-55`, `sonet-4-5`, `claude-foo`."""
    if _TWO_DIGITS.match(bare) or _is_no_claude(bare):
        return True
    words = re.findall("[a-z]+", bare)
    if not bare.startswith("claude"):
        words = words[:1]
    unknown = [word for word in words if len(word) > 3 and word not in _FAMILY_WORDS]
    if not unknown:
        return False
    from difflib import get_close_matches  # 10 ms that ordinary names need not wait for

    return any(get_close_matches(word, _FAMILY_WORDS, 1, _MISSPELT) for word in unknown)


def _is_no_claude(bare: str) -> bool:
    """Whether a name begins as Claude's do, but has neither a known model word nor a version."""
    if not bare.startswith("claude") or _CLAUDE_WITHOUT_VERSION.match(bare):
        return False
    return claude_version(bare) is None


@lru_cache(maxsize=4096)
def _row(bare: str) -> tuple[str, str | None]:
    if is_misspelt(bare):
        return UNKNOWN, None
    if "claude" in bare or bare.split("-")[0] in _CLAUDE_ALIASES:
        return _claude_generation(bare), "anthropic"
    for pattern, generation, provider in _ROWS:
        if compiled(pattern).match(bare):
            return generation, provider
    return first_inside(_INSIDE, bare) or UNKNOWN, None


def _claude_generation(bare: str) -> str:
    """`claude` up to Opus 4.6 and its contemporaries, `claude-4.7` since; newest if unsaid."""
    version = claude_version(bare)
    if version is None:
        return "claude" if re.search(r"claude-(v1|instant)", bare) else "claude-4.7"
    return "claude-4.7" if version >= _CLAUDE_NEW else "claude"


def claude_version(bare: str) -> tuple[int, int] | None:
    """(4, 5) of `claude-sonnet-4-5-20250929`; None where the name says no version."""
    found = _CLAUDE_VERSION.search(_DATE.sub("", bare))
    return (int(found[1]), int(found[2] or 0)) if found else None


def counts_as_gemini_3(bare: str) -> bool:
    """Whether a Gemini counts media and searches as since 3; a name without a number is newest."""
    return _GEMINI_BEFORE_3.match(bare) is None
