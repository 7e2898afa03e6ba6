"""A table of responses from every kind of model server."""

from __future__ import annotations

from typing import Any

from tests.unit.endpoints_fake_server import Asked, Canned, listing, words


def number(name: str, field: str, **more: Any) -> Any:
    """Return a route that reads text from the field `name` and returns its count in `field`."""
    return lambda asked: Canned(body={field: words(asked.body[name]), **more})


def ids(name: str, field: str = "tokens") -> Any:
    return lambda asked: Canned(body={field: list(range(words(asked.body[name])))})


def with_bos(name: str, field: str) -> Any:
    """Return a route like that of `number`, but add a begin-of-text token to the count."""
    return lambda asked: Canned(body={field: len(asked.body[name]) // 3 + 1})


def vllm_tokenize(asked: Asked) -> Canned:
    text = asked.body.get("prompt") or str(asked.body["messages"])
    tokens = list(range(words(text)))
    return Canned(body={"count": len(tokens), "max_model_len": 4096, "tokens": tokens})


def tgi_tokenize(asked: Asked) -> Canned:
    text = asked.body["inputs"]
    one = {"text": "x", "start": 0, "stop": 1}
    return Canned(body=[{"id": n, **one} for n in range(words(text))])


def tgi_chat(asked: Asked) -> Canned:
    tokens = [{"id": n} for n in range(words(str(asked.body["messages"])))]
    return Canned(body={"tokenize_response": tokens, "templated_text": ""})


def litellm_count(source: str) -> Any:
    def route(asked: Asked) -> Canned:
        assert asked.query == "call_endpoint=true"
        total = 7 + words(asked.body["messages"][0]["content"])
        return Canned(body={"total_tokens": total, "count_source": source})

    return route


def show(parameters: str, window: int = 131072) -> Canned:
    info = {"general.architecture": "llama", "llama.context_length": window}
    return Canned(body={"parameters": parameters, "model_info": info, "capabilities": []})


MODELS = ("GET", "/v1/models")
LM_STUDIO_MODELS = [
    {"id": "other", "state": "not-loaded", "max_context_length": 1},
    {"id": "tiny", "state": "loaded", "loaded_context_length": 6000},
]
SERVERS: dict[str, tuple[dict[tuple[str, str], Any], tuple[str, str, str, int | None]]] = {
    "vllm": (
        {
            MODELS: listing("tiny", owned_by="vllm", max_model_len=4096),
            ("POST", "/tokenize"): vllm_tokenize,
        },
        ("vllm", "supported", "supported", 4096),
    ),
    "sglang": (
        {
            MODELS: listing("tiny", owned_by="sglang", max_model_len=2048),
            ("POST", "/tokenize"): vllm_tokenize,
        },
        ("sglang", "supported", "supported", 2048),
    ),
    "vllm behind a gateway that hides its name": (
        {MODELS: listing("tiny", owned_by="gateway"), ("POST", "/tokenize"): vllm_tokenize},
        ("vllm", "supported", "supported", None),
    ),
    "tgi": (
        {
            MODELS: listing("tiny", owned_by="tiny"),
            ("GET", "/info"): Canned(body={"max_input_tokens": 1024, "max_total_tokens": 2048}),
            ("POST", "/tokenize"): tgi_tokenize,
            ("POST", "/chat_tokenize"): tgi_chat,
        },
        ("tgi", "supported", "supported", 2048),
    ),
    "tgi without a list of models": (
        {
            ("GET", "/info"): Canned(body={"max_input_tokens": 9}),
            ("POST", "/tokenize"): tgi_tokenize,
        },
        ("tgi", "supported", "unsupported", 9),
    ),
    "localai": (
        {
            MODELS: listing("tiny", "other"),
            ("GET", "/system"): Canned(body={"backends": [], "loaded_models": [{"id": "tiny"}]}),
            ("POST", "/v1/tokenize"): ids("content"),
        },
        ("localai", "supported", "unsupported", None),
    ),
    "koboldcpp": (
        {
            MODELS: listing("koboldcpp/tiny", owned_by="koboldcpp"),
            ("GET", "/api/extra/true_max_context_length"): Canned(body={"value": 8192}),
            ("POST", "/api/extra/tokencount"): number("prompt", "value"),
        },
        ("koboldcpp", "supported", "unsupported", 8192),
    ),
    "llama-cpp-python, which adds a begin-of-text token": (
        {
            MODELS: listing("tiny", owned_by="me"),
            ("POST", "/extras/tokenize/count"): with_bos("input", "count"),
        },
        ("llama-cpp-python", "supported", "unsupported", None),
    ),
    "litellm in front of a vendor that counts": (
        {
            MODELS: Canned(
                body=listing("tiny", max_input_tokens=200000).body,
                headers={"x-litellm-version": "1.80"},
            ),
            ("POST", "/utils/token_counter"): litellm_count("anthropic_api"),
        },
        ("litellm", "supported", "supported", 200000),
    ),
    "litellm that guesses": (
        {
            MODELS: Canned(body=listing("tiny").body, headers={"x-litellm-version": "1.80"}),
            ("POST", "/utils/token_counter"): litellm_count("local_estimate"),
        },
        ("litellm", "unsupported", "unsupported", None),
    ),
    "ollama with a running model": (
        {
            MODELS: listing("tiny:latest", owned_by="library"),
            ("GET", "/api/ps"): Canned(
                body={"models": [{"name": "tiny:latest", "context_length": 4096}]}
            ),
        },
        ("ollama", "unsupported", "unsupported", 4096),
    ),
    "ollama with num_ctx": (
        {
            MODELS: listing("tiny:latest", owned_by="library"),
            ("GET", "/api/ps"): Canned(body={"models": []}),
            ("POST", "/api/show"): show("temperature 0.7\nnum_ctx                 2048"),
        },
        ("ollama", "unsupported", "unsupported", 2048),
    ),
    "ollama without num_ctx, known by its greeting": (
        {
            MODELS: listing("tiny:latest"),
            ("GET", "/"): Canned(body=b"Ollama is running"),
            ("GET", "/api/ps"): Canned(body={"models": []}),
            ("POST", "/api/show"): show("temperature 0.7"),
        },
        ("ollama", "unsupported", "unsupported", None),
    ),
    "ollama without num_ctx, and a window that every machine has": (
        {
            MODELS: listing("tiny:latest", owned_by="library"),
            ("GET", "/api/ps"): Canned(body={"models": []}),
            ("POST", "/api/show"): show("temperature 0.7", window=2048),
        },
        ("ollama", "unsupported", "unsupported", 2048),
    ),
    "ollama with a num_ctx beyond the model's window": (
        {
            MODELS: listing("tiny:latest", owned_by="library"),
            ("GET", "/api/ps"): Canned(body={"models": []}),
            ("POST", "/api/show"): show("num_ctx 262144"),
        },
        ("ollama", "unsupported", "unsupported", 131072),
    ),
    "lm studio without its SDK": (
        {
            MODELS: listing("tiny", owned_by="organization_owner"),
            ("GET", "/lmstudio-greeting"): Canned(body={"lmstudio": True}),
            ("GET", "/api/v0/models"): Canned(body={"data": LM_STUDIO_MODELS}),
        },
        ("lmstudio", "unsupported", "unsupported", 6000),
    ),
}
