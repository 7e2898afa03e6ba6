"""How many tokens one reply may have at most, by the makers' model pages.

genai-prices does not carry it. Only what a maker has published stands here; no entry, no number.
"""

from __future__ import annotations

from sidecar.models.patterns import first_match

_ROWS: tuple[tuple[str, int], ...] = (
    (r"gpt-5(\.\d)?-(chat|search)|gpt-chat", 16_384),
    (r"gpt-[56]", 128_000),
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
    (r"o[134](-|$)", 100_000),
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
    (r"glm-4\.[67]|glm-5", 131_072),
    (r"glm-4\.5", 98_304),
)


def max_output_of(bare: str) -> int | None:
    """Tokens of one reply at most, by a model's bare name; None where not known."""
    return first_match(_ROWS, bare)
