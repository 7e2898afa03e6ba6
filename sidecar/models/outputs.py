"""How many tokens one reply may have at most, by the makers' model pages.

genai-prices does not carry it. Only what is published stands here; docs/reference/sources.md names
where. No entry, no number: none for weights whose maker sells no access, as each host sets its own.
"""

from __future__ import annotations

from sidecar.models.families import is_misspelt
from sidecar.models.patterns import first_match
from sidecar.models.windows import published_window

_WINDOW = 0
"""The maker caps no reply: it may take what the prompt leaves of the window."""

_ROWS: tuple[tuple[str, int], ...] = (
    (r"gpt-5(\.\d)?-(chat|search)|gpt-chat", 16_384),
    (r"gpt-[56]|gpt-((astra|sol|terra|luna|mini)-)?latest", 128_000),
    (r"gpt-4\.1", 32_768),
    (r"gpt-4o-2024-05-13", 4_096),
    (r"(chat)?gpt-4(o|\.5)", 16_384),
    (r"gpt-4-(turbo|1106|0125)", 4_096),
    (r"gpt-4-32k", 32_768),
    (r"gpt-4(-0613|-0314)?$", 8_192),
    (r"gpt-3\.?5-turbo", 4_096),
    (r"gpt-(realtime|audio)-?mini|gpt-realtime$", 4_096),
    (r"o1-mini", 65_536),
    (r"o1-preview", 32_768),
    (r"o[134](-|$)|codex-mini", 100_000),
    (r"computer-use", 1_024),
    (r"gpt-oss", 131_072),
    (r"claude-3-(opus|sonnet|haiku)", 4_096),
    (r"claude-3[.-]5", 8_192),
    (r"claude-3[.-]7", 64_000),
    (r"claude-(opus-4([.-][01])?(-20\d+)?|4-opus)$", 32_000),
    (r"claude-(sonnet-4[.-]6|4[.-]6-sonnet)", 128_000),
    (r"claude-(sonnet-4|4-sonnet|haiku-4[.-]5|opus-4[.-]5)", 64_000),
    (r"claude-opus-4[.-][678]", 128_000),
    (r"claude-(opus|sonnet|haiku|fable|mythos)-([5-9]|latest)", 128_000),
    (r"(sonnet|opus|fable|mythos|opusplan)$", 128_000),
    (r"gemini-(1\.5|2\.0)", 8_192),
    (r"gemini-.*image", 32_768),
    (r"gemini-(2\.5|[3-9]|flash-latest|pro-latest)(?!.*(live|tts))", 65_536),
    (r"command-a", 8_192),
    (r"command", 4_096),
    (r"glm-4\.[67]|glm-5|glm-(flash-)?latest", 131_072),
    (r"glm-4\.5", 98_304),
    (r"deepseek-(v(4|[5-9])|flash|pro-latest)", 393_216),
    (r"deepseek-(r1(?!.*distill)(?!.*qwen)|reasoner|v3[.-][12])", 65_536),
    (r"deepseek-(chat|v3)", 8_192),
    (r"grok-(latest|4[.-][5-9]|[5-9])", _WINDOW),
    (r"kimi-|moonshot-v1", _WINDOW),
    (r"(open-)?mi[sx]tral(?!-(embed|ocr|moderation))|ministral|magistral|devstral", _WINDOW),
    (r"codestral(?!-embed)|pixtral|voxtral-small(?!.*transcribe)", _WINDOW),
    (r"minimax-m[2-9](?!.*her)", 131_072),
    (r"muse-", 131_072),
    (r"qwen-?3\.[78]-max", 131_072),
    (r"qwen-?(3\.[5-9]|3-(max|coder|next))", 65_536),
    (r"qwen-?3-.*2507|qwen-?3-vl", 32_768),
    (r"qwen-?3-\d", 16_384),
    (r"qwen-(plus|flash)", 32_768),
    (r"qwen-(max|turbo)|qwen-?2[.-]5-\d", 8_192),
)


def max_output_of(bare: str) -> int | None:
    """Tokens of one reply at most, by a model's bare name; None where not known."""
    tokens = None if is_misspelt(bare) else first_match(_ROWS, bare)
    return published_window(bare) if tokens == _WINDOW else tokens
