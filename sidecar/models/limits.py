"""Lists token limits that are missing from the price list: context windows, prompts and replies.

The limits come from the vendors' model pages or, for open weights, from the context length in
the model's configuration. The sources are listed in docs/reference/sources.md. The price list
takes precedence over this table. A host may use a smaller window, which its endpoint reports.
Models that are not hosted by their vendor have no limit for replies.
"""

from __future__ import annotations

from functools import lru_cache

from sidecar.models.families import is_misspelt
from sidecar.models.names import compiled, first_inside, first_match

_M = 1_048_576

_WINDOWS: tuple[tuple[str, int], ...] = (
    # (pattern for the start of the bare name, tokens). The first match is used.
    (r"claude-(v1|instant)|claude-2$", 100_000),
    (r"claude-(2|3|((opus|sonnet|haiku)-4|4(?=[.-]))(?![.-][6-9](?!\d)))", 200_000),
    (r"claude-|(sonnet|opus|haiku|fable|mythos|opusplan)$", 1_000_000),
    (r"gpt-chat-latest|gpt-mini-latest", 400_000),
    (r"gpt-((astra|sol|terra|luna)-)?latest", 1_050_000),
    (r"chatgpt-4o|gpt-5(\.\d)?-(chat|search)", 128_000),
    (r"gpt-(4\.5|4-(1106|0125|turbo|vision))", 128_000),
    (r"gpt-4o-mini-tts", 2_000),
    (r"gpt-4o-(mini-)?transcribe|gpt-4o-mini-realtime", 16_000),
    (r"gpt-4o-realtime", 32_000),
    (r"gpt-4o", 128_000),
    (r"gpt-4-32k", 32_768),
    (r"gpt-4(-0\d{3})?$", 8_192),
    (r"gpt-oss", 131_072),
    (r"o1-(mini|preview)", 128_000),
    (r"o[134](-|$)|codex-mini", 200_000),
    (r"computer-use|text-embedding-", 8_192),
    (r"gpt-4\.1", 1_047_576),
    (r"gpt-3\.5-0|gpt-3\.5-turbo-(0301|0613)", 4_096),
    (r"gpt-3\.5", 16_385),
    (r"gpt-realtime(-mini.*)?$", 32_000),
    (r"gpt-(realtime|audio)", 128_000),
    (r"gpt-5(\.[0-3])?(-|$)|gpt-5\.4-(mini|nano)", 400_000),
    (r"gpt-(5\.\d|6)", 1_050_000),
    (r"(davinci|babbage)-002", 16_384),
    (r"text-davinci-00", 4_097),
    (r"(davinci|curie|babbage|ada)$", 2_049),
    (r"gemini-(embedding|.*tts)", 8_192),
    (r"gemini-.*live", 131_072),
    (r"gemini-1\.5-pro|gemini-pro-1\.5", 2_097_152),
    (r"gemini-.*image|gemini-nano-banana", 65_536),
    (r"gemini-(1\.0|pro$|pro-vision)", 32_768),
    (r"gemini", _M),
    (r"gemma-?(3n|3-1b)", 32_768),
    (r"gemma-?4-(26|31)b", 262_144),
    (r"gemma-?[34]", 131_072),
    (r"(code|med)?gemma", 8_192),
    (r"palm-2", 9_216),
    (r"command-a|c4ai-command-a", 256_000),
    (r"(c4ai-)?command-r", 128_000),
    (r"command", 4_096),
    (r"(c4ai-)?aya-expanse-32b", 131_072),
    (r"(c4ai-)?aya", 8_192),
    (r"mistral-large-4", _M),
    (r"mistral-large-(3|25)|mistral-large-latest|devstral-(2|medium)", 262_144),
    (r"mistral-medium-(3[.-]5|26)|mistral-small-26|ministral-(8|14)b-2512", 262_144),
    (r"mistral-embed|codestral-embed", 8_192),
    (r"mistral-ocr|voxtral-mini-2602", 16_384),
    (r"mistral-(large-2402|medium-2312|medium$|small$|small-24(02|09)|saba|tiny)", 32_768),
    (r"magistral-.*2506", 40_960),
    (r"ministral-3-", 262_144),
    (r"codestral-22b|codestral-2405|mathstral|voxtral", 32_768),
    (r"codestral", 256_000),
    (r"(open-)?mi[sx]tral-8x22b", 65_536),
    (r"(open-)?mi[sx]tral-(7b|8x7b)|mixtral", 32_768),
    (r"(open-)?mistral|pixtral|ministral|magistral|devstral", 131_072),
    (r"(databricks-)?(meta-)?llama-?4-scout", 10_485_760),
    (r"(databricks-)?(meta-)?llama-?4", _M),
    (r"(meta-)?llama-guard-2", 8_192),
    (r"(meta-)?llama-(3\.[123]|guard-[34])|llama3\.[123]", 131_072),
    (r"(meta-)?llama-?3", 8_192),
    (r"codellama", 16_384),
    (r"(meta-)?llama-?2|vicuna|solar-10|yi-34b|yi-6b", 4_096),
    (r"qwen-?(3\.[5-9]-(plus|flash|max)|3-coder-(plus|flash))", 1_000_000),
    (r"qwen-?(3\.[5-9]|3-(coder|next|max|vl|.*2507)|4)", 262_144),
    (r"qwen-?3-embedding", 32_768),
    (r"qwen-(plus|flash)", 1_000_000),
    (r"qwen-?3|qwq-32b$|qvq|qwen-(vl|turbo)", 131_072),
    (r"qwen|qwq|codeqwen", 32_768),
    (r"(databricks-)?deepseek-(v(4|[5-9])|(flash|pro)(-latest)?$)", _M),
    (r"deepseek-(v3[.-][12]|chat|reasoner)", 131_072),
    (r"deepseek-(coder-33b|coder-6|llm|math|moe)", 16_384),
    (r"(databricks-)?deepseek", 163_840),
    (r"glm-4\.5v", 65_536),
    (r"(zai-|databricks-)?glm-(4-32b-0414-128k|4\.5|4\.6v)", 131_072),
    (r"(zai-|databricks-)?glm-(5[.p-][2-9]|[6-9]|(flash-)?latest)|glm-4-long", 1_000_000),
    (r"(zai-|databricks-)?glm-(4\.[67]|[5-9])", 202_752),
    (r"glm-4-airx", 8_000),
    (r"glm-4-(air|assistant|flashx|plus)", 128_000),
    (r"glm-(4-|z1)", 32_768),
    (r"moonlight", 8_192),
    (r"(databricks-)?kimi-(k[3-9]|latest)", _M),
    (r"kimi-k2(-0711|-instruct|$)", 131_072),
    (r"(databricks-)?kimi-k", 262_144),
    (r"moonshot-v1-8k", 8_192),
    (r"moonshot-v1-32k", 32_768),
    (r"kimi|moonshot", 131_072),
    (r"(minimax-)?m2-her", 65_536),
    (r"minimax-(m1|01|m[3-9])", 1_000_000),
    (r"minimax", 204_800),
    (r"grok-vision-beta", 8_192),
    (r"grok-2", 32_768),
    (r"grok-(beta|3)", 131_072),
    (r"grok-4([.-]1)?-fast", 2_000_000),
    (r"grok-(4$|4-0|code|build)", 256_000),
    (r"grok-4\.(2|3)", 1_000_000),
    (r"grok-(4|latest)", 500_000),
    (r"phi-?4-(mini|multimodal)|phi-3.*128k", 131_072),
    (r"phi-?4-reasoning", 32_768),
    (r"phi-?4", 16_384),
    (r"phi-?3", 4_096),
    (r"phi-?2", 2_048),
    (r"sonar-pro", 200_000),
    (r"(perplexity-)?sonar|r1-1776|llama-3.1-sonar", 128_000),
    (r"jamba", 256_000),
    (r"muse-glimmer", 131_072),
    (r"muse-", _M),
    (r"(amazon\.)?nova-micro", 128_000),
    (r"(amazon\.)?nova-(2|premier)", 1_000_000),
    (r"(amazon\.)?nova", 300_000),
    (r"titan-text-lite", 4_096),
    (r"titan-text", 8_192),
    (r"yi-large|wizardlm-2-7b|zephyr|openhermes", 32_768),
    (r"wizardlm-2-8x22b", 65_536),
    (r"(nvidia-)?nemotron-(nano|mini)", 131_072),
    (r"(nvidia-)?nemotron", 262_144),
    (r"olmo-?3|olmo-3", 65_536),
    (r"olmo", 4_096),
    (r"voyage-(01|lite-01|2$|02|lite-02)", 4_000),
    (r"voyage-(large|code|multilingual|law)-2", 16_000),
    (r"voyage", 32_000),
    (r"bge-", 512),
)
_WINDOWS_OF_BASES: tuple[tuple[str, int], ...] = (
    # The name of a fine-tune often contains the name of its base model.
    (r"(llama-?|l)3\.[123]", 131_072),
    (r"(llama-?|l)3(-|$)", 8_192),
    (r"llama-?2|(^|-)l2-", 4_096),
    (r"8x22b", 65_536),
    (r"mixtral|mistral-7b", 32_768),
    (r"mistral|nemo-12b|(^|-)mn-", 131_072),
    (r"qwen-?2\.5|qwen-?2", 32_768),
    (r"deepseek-(v3|r1)", 163_840),
)
_CHAT = r"gpt-5(\.\d)?-chat(-latest)?$"
"""Matches ChatGPT's models. Price lists contain the larger window of the API models instead."""
_CHAT_WINDOW = 128_000

_PROMPTS: tuple[tuple[str, int], ...] = (
    # OpenAI's windows include the reply, so the prompt limit is the window minus the reply limit.
    (r"gpt-5(\.\d)?-(chat|search)|gpt-chat", 0),  # these models have no separate limit
    (r"gpt-5(\.[0-3])?(-|$)|gpt-5\.4-(mini|nano)|gpt-mini-latest", 272_000),
    (r"gpt-(5\.[4-9]|6|((astra|sol|terra|luna)-)?latest)", 922_000),
)

_WHOLE = 0
"""Marks models whose replies may use the rest of the context window."""

_REPLIES: tuple[tuple[str, int], ...] = (
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
    (r"grok-(latest|4[.-][5-9]|[5-9])", _WHOLE),
    (r"kimi-|moonshot-v1", _WHOLE),
    (r"(open-)?mi[sx]tral(?!-(embed|ocr|moderation))|ministral|magistral|devstral", _WHOLE),
    (r"codestral(?!-embed)|pixtral|voxtral-small(?!.*transcribe)", _WHOLE),
    (r"minimax-m[2-9](?!.*her)", 131_072),
    (r"muse-", 131_072),
    (r"qwen-?3\.[78]-max", 131_072),
    (r"qwen-?(3\.[5-9]|3-(max|coder|next))", 65_536),
    (r"qwen-?3-.*2507|qwen-?3-vl", 32_768),
    (r"qwen-?3-\d", 16_384),
    (r"qwen-(plus|flash)", 32_768),
    (r"qwen-(max|turbo)|qwen-?2[.-]5-\d", 8_192),
)


def overruling_window(bare: str) -> int | None:
    """Return the context window if it takes precedence over the price list, or None."""
    return _CHAT_WINDOW if compiled(_CHAT).match(bare) else None


def published_window(bare: str) -> int | None:
    """Return the published context window of a model in tokens, or None if it is unknown."""
    if is_misspelt(bare):
        return None
    found = first_match(_WINDOWS, bare)
    return first_inside(_WINDOWS_OF_BASES, bare) if found is None else found


@lru_cache(maxsize=4096)
def input_limit(bare: str) -> int | None:
    """Return a model's maximum prompt size in tokens if it is smaller than the window, or None."""
    return None if is_misspelt(bare) else first_match(_PROMPTS, bare) or None


def max_output_of(bare: str) -> int | None:
    """Return the maximum reply size of a model in tokens, or None if it is unknown."""
    tokens = None if is_misspelt(bare) else first_match(_REPLIES, bare)
    return published_window(bare) if tokens == _WHOLE else tokens
