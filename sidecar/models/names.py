"""Model names as people and APIs write them, taken apart: who serves the model, and which it is.

Pure and quick: no price list is loaded here. Every way of writing a model that is undone here is
one that some API, gateway or local runner really uses; what is not recognised is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from sidecar.text.globs import MAX_LENGTH, names_any

LOCAL_PROVIDERS = frozenset(
    ("ollama", "llamacpp", "lmstudio", "vllm", "sglang", "tgi", "localai", "koboldcpp")
)
"""Providers that run on the user's own machines; no price list knows them."""

CREDIT_PROVIDERS = frozenset(("github-copilot",))
"""Providers with credits of their own, which do not follow from tokens and the makers' prices."""

HOSTS = {
    "openrouter": "openrouter",
    "azure": "azure",
    "bedrock": "aws",
    "aws": "aws",
    "vertex": "google",
    "vertex_ai": "google",
    "groq": "groq",
    "together": "together",
    "together_ai": "together",
    "fireworks": "fireworks",
    "fireworks_ai": "fireworks",
    "cerebras": "cerebras",
    "github-copilot": "github-copilot",
    "github_copilot": "github-copilot",
    "gemini": "google",
    "xai": "x-ai",
    "novita": "novita",
    "avian": "avian",
    "baseten": "baseten",
    "databricks": "databricks",
    "ovhcloud": "ovhcloud",
    "huggingface": "huggingface",
    "openai-codex": "openai",
}
"""First path segments that name who serves a model. Makers (`openai/…`, `anthropic/…`) are not
here: `vendor/model` is how OpenRouter writes its models, and means OpenRouter."""

_MAKERS = (
    "anthropic", "openai", "google", "mistral", "moonshotai", "x-ai", "deepseek", "zhipuai", "zai",
    "cohere", "meta", "minimax", "perplexity", "arcee",
)  # fmt: skip
KNOWN_PROVIDERS = (
    {name: name for name in (*_MAKERS, *HOSTS.values(), *LOCAL_PROVIDERS, *CREDIT_PROVIDERS)}
    | HOSTS
    | {
        "amazon-bedrock": "aws",
        "google-vertex": "google",
        "azure-openai": "azure",
        "togetherai": "together",
        "fireworks-ai": "fireworks",
        "moonshot": "moonshotai",
    }
)
"""What users and agents call the providers that have prices, and what the price list calls them."""

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
_ROUTES = frozenset(
    ("free", "beta", "nitro", "floor", "online", "extended", "thinking", "exacto", "batch")
)


class Name(msgspec.Struct, frozen=True):
    """A model's name taken apart."""

    provider: str | None
    """Who serves it, where the name itself says so (genai-prices' ids, or a local provider)."""
    bare: str
    """The model without provider, route, quantisation and file ending; lower case."""
    host_id: str
    """The name as that provider writes it: what to look up in its price list; case kept."""


def parse(model: str) -> Name:
    """Take a model's name apart. Never raises; what is not recognised stays in `bare`.

    Only the first `MAX_LENGTH` characters are looked at: others may name what they like.
    """
    return _parse(model[:MAX_LENGTH])


@lru_cache(maxsize=4096)
def _parse(model: str) -> Name:
    text = model.strip()
    if text.lower().endswith(".gguf"):
        return _gguf(text)
    if text.startswith("arn:"):
        return Name("aws", _bare(text.rpartition("/")[2]), text.rpartition("/")[2])
    if text.startswith("@cf/"):
        return Name("cloudflare", _bare(text.rpartition("/")[2]), text)
    head, slash, rest = text.lstrip("~").partition("/")
    if not slash:
        return _plain(text)
    return _with_slash(text, head.lower(), rest)


def same_model(asked: str, loaded: str) -> bool:
    """Whether both name one model, so far as its tokens go.

    Case, folder or provider, `.gguf`, shard, quantisation and `:latest` make no difference.
    """
    return bool(_forms(asked) & _forms(loaded))


def matches(model: str, globs: Iterable[str]) -> bool:
    """Whether one of a setting's globs means the model.

    Tried are the name as written, what stands after its last slash, and the bare model: `qwen-*`
    means `ollama/qwen-7b` and `qwen-7b-Q4_K_M.gguf` too. Case makes no difference.
    """
    return names_any(globs, (model, model.rpartition("/")[2], parse(model).bare))


def _forms(name: str) -> set[str]:
    full = name[:MAX_LENGTH].strip().lower().replace("\\", "/")
    names = (full, full.rpartition("/")[2])
    return {_unquantised(one.removesuffix(":latest").removesuffix(".gguf")) for one in names} - {""}


def _unquantised(stem: str) -> str:
    """A file's stem without the number of its part and what says how it was quantised."""
    stem = _SHARD.sub("", stem)
    while (shorter := _QUANTISATION.sub("", stem)) != stem:
        stem = shorter
    return stem


def _gguf(text: str) -> Name:
    stem = re.split(r"[\\/]", text)[-1][: -len(".gguf")]
    return Name("llamacpp", _unquantised(stem).lower(), stem)


def _with_slash(text: str, head: str, rest: str) -> Name:
    bare = _bare(rest.rpartition("/")[2])
    if head in LOCAL_PROVIDERS:
        return Name(head, bare, rest)
    if head in HOSTS:
        return Name(HOSTS[head], bare, rest)
    if head == "accounts":
        return Name("fireworks", re.sub(r"(\d)p(\d)", r"\1.\2", bare), text)
    if head in ("models", "publishers", "projects", "tunedmodels"):
        return Name("google", bare, text.rpartition("/")[2])
    return Name("openrouter", bare, text.lstrip("~"))


def _plain(text: str) -> Name:
    lower = text.lower()
    if "@" in lower:
        return Name("google", _bare(lower.partition("@")[0]), text)
    name, colon, tag = lower.partition(":")
    if colon and _OLLAMA_TAG.match(tag) and not _BEDROCK.match(lower):
        return Name("ollama", _bare(name if tag in ("latest", "cloud") else f"{name}-{tag}"), text)
    return Name("aws" if _BEDROCK.match(lower) else None, _bare(lower), text)


def _bare(name: str) -> str:
    """The model itself: no fine-tune's suffix, no Bedrock prefix and version, no route."""
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
