"""The model servers that users run themselves: how each counts, and where its window is read.

LM Studio cannot count over HTTP. Its SDK counts over a WebSocket.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from sidecar.endpoints.counting_requests import (
    LISTED,
    MOST_TOKENS,
    Chat,
    Counting,
    ListedModel,
    Request,
    Server,
    count_ids,
    decode_as,
    field_of,
    limit_at,
    list_entries,
    openai_body,
    openai_chat_counting,
    read_ids,
    read_number,
    text_counting,
    token_count,
    valid_window,
)
from sidecar.endpoints.http import Connection, time_left
from sidecar.endpoints.outcome import EndpointError
from sidecar.models.names import same_model

# By default, llama.cpp's router loads the model that a request names.
_NO_LOAD = "autoload=false"


class _Settings(msgspec.Struct):
    n_ctx: int | None = None


class _Props(msgspec.Struct):
    default_generation_settings: _Settings | None = None
    is_sleeping: bool = False


def _llamacpp_chat(model: str, chat: Chat) -> Request:
    """Build a request that counts with the model's chat template.

    If the last message is from the assistant, llama.cpp tries to continue it, which fails if it
    contains tool calls. An empty result is therefore appended for each call. The next request must
    contain these results anyway.
    """
    body = openai_body(chat, model=model)
    turns = body["messages"]
    calls = turns[-1].get("tool_calls") if turns else None
    for call in calls or ():
        turns.append({"role": "tool", "tool_call_id": call.get("id", ""), "content": ""})
    return Request(f"/v1/chat/completions/input_tokens?{_NO_LOAD}", body)


async def _llamacpp_props(connection: Connection, model: str) -> _Props | None:
    """Return a model's properties. This request does not wake a sleeping model."""
    answer = await connection.get(f"/props?model={quote(model, safe='')}&{_NO_LOAD}")
    return decode_as(answer, _Props)


async def _llamacpp_is_asleep(connection: Connection, model: str) -> bool:
    props = await _llamacpp_props(connection, model)
    return props is not None and props.is_sleeping


async def _llamacpp_limit(
    connection: Connection, model: str, listed: ListedModel | None
) -> int | None:
    props = await _llamacpp_props(connection, model)
    settings = props.default_generation_settings if props else None
    window = valid_window(settings.n_ctx) if settings else None
    return window or (valid_window(listed.meta.n_ctx) if listed and listed.meta else None)


async def _llamacpp_loaded(
    connection: Connection, listed: Sequence[ListedModel]
) -> Sequence[ListedModel]:
    del connection
    return [model for model in listed if model.status is None or model.status.value == "loaded"]


LLAMACPP = Server(
    name="llamacpp",
    text=text_counting(
        f"/tokenize?{_NO_LOAD}",
        "content",
        read_ids("tokens"),
        add_special=False,
        parse_special=False,
    ),
    chat=Counting(_llamacpp_chat, read_number("input_tokens")),
    limit=_llamacpp_limit,
    loaded=_llamacpp_loaded,
    is_asleep=_llamacpp_is_asleep,
    parses_specials=False,
)

LLAMACPP_PYTHON = Server(
    name="llama-cpp-python",
    text=text_counting("/extras/tokenize/count", "input", read_number("count")),
    counts_empty=True,
)

VLLM = Server(
    name="vllm",
    text=text_counting("/tokenize", "prompt", read_number("count"), add_special_tokens=False),
    chat=openai_chat_counting("/tokenize", read_number("count"), add_generation_prompt=True),
)
SGLANG = replace(VLLM, name="sglang")


def _read_tgi_chat(body: object) -> int:
    return count_ids(body.get("tokenize_response") if isinstance(body, Mapping) else body)


TGI = Server(
    name="tgi",
    text=text_counting("/tokenize", "inputs", count_ids, add_special_tokens=False),
    chat=openai_chat_counting("/chat_tokenize", _read_tgi_chat),
    limit=limit_at("/info", "max_total_tokens", "max_input_tokens"),
)

KOBOLDCPP = Server(
    name="koboldcpp",
    text=text_counting("/api/extra/tokencount", "prompt", read_number("value"), special=False),
    limit=limit_at("/api/extra/true_max_context_length", "value"),
    counts_empty=True,
)


class _Loaded(msgspec.Struct):
    id: str = ""


async def _localai_loaded(
    connection: Connection, listed: Sequence[ListedModel]
) -> Sequence[ListedModel]:
    answer = await connection.get("/system")
    names = [model.id for model in list_entries(answer, "loaded_models", _Loaded)]
    return [model for model in listed if any(same_model(model.id, name) for name in names)]


LOCALAI = Server(
    name="localai",
    text=text_counting("/v1/tokenize", "content", read_ids("tokens")),
    loaded=_localai_loaded,
)


_NUM_CTX = re.compile(r"^[ \t]*num_ctx[ \t]+(\d{1,10})[ \t\r]*$", re.MULTILINE)


class _Running(msgspec.Struct):
    name: str = ""
    model: str = ""
    context_length: int | None = None


class _Show(msgspec.Struct):
    parameters: str | None = None
    model_info: dict[str, Any] | None = None


async def _ollama_limit(
    connection: Connection, model: str, listed: ListedModel | None
) -> int | None:
    """Return a model's context window without loading the model.

    If the model is not in memory, returns the window that it would get, or None if that depends on
    the machine.
    """
    del listed
    answer = await connection.get("/api/ps")
    for running in list_entries(answer, "models", _Running):
        if same_model(model, running.name) or same_model(model, running.model):
            return valid_window(running.context_length)
    description = decode_as(await connection.post("/api/show", {"model": model}), _Show)
    return _window_from_show(description) if description else None


_LEAST_OLLAMA_WINDOW = 4_096
"""The window that Ollama gives to a model without `num_ctx` on a GPU with less than 24 GiB of
memory, since version 0.15.5. With more memory, the window is larger.
"""


def _window_from_show(description: _Show) -> int | None:
    """Return the smaller of `num_ctx` and the model's maximum.

    Without `num_ctx`, only a maximum that every machine can provide is known to be the window.
    """
    configured = _NUM_CTX.search(description.parameters or "")
    entries = islice((description.model_info or {}).items(), LISTED)
    most = [n for key, n in entries if key.endswith(".context_length") and isinstance(n, int)]
    wanted = int(configured[1]) if configured else None
    if wanted is None and min(most, default=MOST_TOKENS) > _LEAST_OLLAMA_WINDOW:
        return None
    return valid_window(min([*most, *filter(None, [wanted])]))


OLLAMA = Server(name="ollama", limit=_ollama_limit, loads_itself=True)


_LOCAL_SOURCES = ("local_estimate", "local_tokenizer", "local")
"""The sources that LiteLLM reports if it has estimated a count itself."""


def _read_litellm(body: object) -> int:
    """Return the `total_tokens` field of LiteLLM's response.

    Raises:
        EndpointError: LiteLLM estimated the count, or does not say how it counted.
    """
    source = field_of(body, "count_source") or field_of(body, "litellm_count_source")
    if not isinstance(source, str) or source in _LOCAL_SOURCES:
        raise EndpointError("unsupported", "LiteLLM only estimates token counts for this model")
    return token_count(field_of(body, "total_tokens"))


LITELLM = Server(
    name="litellm",
    chat=openai_chat_counting("/utils/token_counter?call_endpoint=true", _read_litellm),
    text_by_chat=True,
)


class _Model(msgspec.Struct):
    id: str = ""
    state: str = ""
    loaded_context_length: int | None = None


async def _lmstudio_limit(
    connection: Connection, model: str, listed: ListedModel | None
) -> int | None:
    del listed
    answer = await connection.get("/api/v0/models")
    for entry in list_entries(answer, "data", _Model):
        if entry.state == "loaded" and same_model(model, entry.id):
            return valid_window(entry.loaded_context_length)
    return None


LMSTUDIO = Server(name="lmstudio", limit=_lmstudio_limit)


SDK_SECONDS = 2.0


def sdk_is_installed() -> bool:
    """Return whether the `token-sidecar[lmstudio]` extra is installed."""
    return importlib.util.find_spec("lmstudio") is not None


class SdkCounter:
    """Counts with LM Studio's SDK, but only for models that are in memory.

    The same task must open and close the SDK's client, so one task keeps it open until `aclose`.
    """

    def __init__(self, root: str) -> None:
        self._host = urlsplit(root).netloc
        self._holder: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._opened: asyncio.Future[Any] | None = None

    async def count(self, model: str, text: str) -> int:
        """Return the text's token count.

        Raises:
            EndpointError: The model is not in memory, or the SDK has failed.
        """
        try:
            async with asyncio.timeout(min(SDK_SECONDS, time_left())):
                handle = await self._loaded_model(model)
                return token_count(await handle.count_tokens(text))
        except EndpointError:
            raise
        except Exception as error:  # the SDK's errors have no documented base class
            await self.aclose()
            raise _to_endpoint_error(error) from None

    async def aclose(self) -> None:
        self._stop.set()
        if self._holder is not None:
            await asyncio.wait({self._holder}, timeout=SDK_SECONDS)
            self._holder.cancel()
            self._holder = None

    async def _loaded_model(self, model: str) -> Any:
        client = await self._get_client()
        for handle in await client.llm.list_loaded():
            if same_model(model, str(handle.identifier)):
                return handle
        raise EndpointError("unknown", "LM Studio does not have the model loaded")

    async def _get_client(self) -> Any:
        if self._opened is None or self._holder is None or self._holder.done():
            self._stop = asyncio.Event()
            self._opened = asyncio.get_running_loop().create_future()
            self._holder = asyncio.create_task(self._hold(self._opened, self._stop))
        client = await asyncio.shield(self._opened)
        if isinstance(client, EndpointError):
            raise client
        return client

    async def _hold(self, opened: asyncio.Future[Any], stop: asyncio.Event) -> None:
        try:
            lmstudio = await asyncio.to_thread(importlib.import_module, "lmstudio")
            async with lmstudio.AsyncClient(self._host) as client:
                opened.set_result(client)
                await stop.wait()
        except Exception as error:
            if not opened.done():
                opened.set_result(_to_endpoint_error(error))


def _to_endpoint_error(error: Exception) -> EndpointError:
    return EndpointError("unreachable", f"LM Studio's SDK failed ({type(error).__name__})")
