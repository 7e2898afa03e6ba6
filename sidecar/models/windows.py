"""Windows that the price list leaves out, and prompts that are capped below the window.

By the makers' model pages and, for open weights, by the length that their configuration gives:
docs/reference/sources.md names where each maker's stand. The list in force wins: these are asked
where it knows a model, or an alias of one, without a window. What a host really gives may be less;
its endpoint says so where it has one.
"""

from __future__ import annotations

from functools import lru_cache

from sidecar.models.families import is_misspelt
from sidecar.models.patterns import compiled, first_inside, first_match

_M = 1_048_576

_ROWS: tuple[tuple[str, int], ...] = (
    # (pattern that the bare name begins with, tokens); the first that matches holds.
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
_INSIDE: tuple[tuple[str, int], ...] = (
    # Fine-tunes carry the name of what they were made from inside theirs.
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
"""What ChatGPT runs: a list that takes it for the model of its name gives it too much."""
_CHAT_WINDOW = 128_000

_INPUTS: tuple[tuple[str, int], ...] = (
    # OpenAI's windows hold prompt and reply, and keep the greatest reply free.
    (r"gpt-5(\.\d)?-(chat|search)|gpt-chat", 0),  # no cap of their own
    (r"gpt-5(\.[0-3])?(-|$)|gpt-5\.4-(mini|nano)|gpt-mini-latest", 272_000),
    (r"gpt-(5\.[4-9]|6|((astra|sol|terra|luna)-)?latest)", 922_000),
)


def overruling_window(bare: str) -> int | None:
    """Tokens of a window that holds whatever a list says; None for nearly every model."""
    return _CHAT_WINDOW if compiled(_CHAT).match(bare) else None


def published_window(bare: str) -> int | None:
    """Tokens of a model's window by its bare name; None where no page is known."""
    if is_misspelt(bare):
        return None
    found = first_match(_ROWS, bare)
    return first_inside(_INSIDE, bare) if found is None else found


@lru_cache(maxsize=4096)
def input_limit(bare: str) -> int | None:
    """Tokens that a prompt may hold where that is less than the window; else None."""
    return None if is_misspelt(bare) else first_match(_INPUTS, bare) or None
