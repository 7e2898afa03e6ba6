"""The fixed table of known vendors: who counts, who reports a window, who does neither.

A host in it is never sent a POST but a count that was asked for.
"""

from __future__ import annotations

from sidecar.endpoints.clouds import anthropic, gemini, openai, tokenizers
from sidecar.endpoints.clouds.base import Cloud, bearer, reported
from sidecar.endpoints.servers.base import Server

_WINDOW = reported("max_context_length", "context_window")


def _silent(name: str, *hosts: str, show: str | None = None) -> Cloud:
    """A vendor without a count; `show` may report the window."""
    return Cloud(Server(name=name), hosts, bearer, show, _WINDOW)


CLOUDS: tuple[Cloud, ...] = (
    anthropic.CLOUD,
    openai.CLOUD,
    gemini.CLOUD,
    tokenizers.COHERE,
    tokenizers.XAI,
    _silent("mistral", "api.mistral.ai", show="/v1/models/{model}"),
    _silent("groq", "api.groq.com", show="/v1/models/{model}"),
    _silent("openrouter", "openrouter.ai"),
    _silent("deepseek", "api.deepseek.com"),
    # Bedrock counts, but only requests signed with SigV4, for which there is no key to name.
    _silent("aws", "amazonaws.com"),
    _silent("azure", "azure.com", "azure-api.net"),
    _silent("google", "googleapis.com"),
    _silent("fireworks", "fireworks.ai"),
    _silent("together", "together.xyz", "together.ai"),
    _silent("perplexity", "perplexity.ai"),
    _silent("nvidia", "nvidia.com"),
    _silent("huggingface", "huggingface.co"),
    _silent("ollama", "ollama.com"),
    _silent("moonshotai", "moonshot.ai", "moonshot.cn"),
    _silent("cerebras", "cerebras.ai"),
    _silent("zai", "z.ai", "bigmodel.cn"),
    _silent("alibaba", "aliyuncs.com"),
)


def find_cloud(host: str) -> Cloud | None:
    """The vendor whose host this is, with or without a subdomain before it."""
    name = host.lower().rstrip(".")
    for cloud in CLOUDS:
        if any(name == known or name.endswith(f".{known}") for known in cloud.hosts):
            return cloud
    return None
