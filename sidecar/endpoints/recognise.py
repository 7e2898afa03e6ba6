"""Which kind of server answers: by how it lists its models, else by the shape of its counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.endpoints import plausible
from sidecar.endpoints.address import without_secrets
from sidecar.endpoints.outcome import URL_IN_DOUBT, Fault
from sidecar.endpoints.servers import (
    koboldcpp,
    litellm,
    llamacpp,
    llamacpp_python,
    lmstudio,
    localai,
    ollama,
    tgi,
    vllm,
)
from sidecar.endpoints.servers.base import Listed, Server, refuse_unless_ok

if TYPE_CHECKING:
    from sidecar.endpoints.http import Answer, Connection

_OWNERS: Mapping[str, Server] = {
    "llamacpp": llamacpp.SERVER,
    "vllm": vllm.SERVER,
    "sglang": vllm.SGLANG,
    "koboldcpp": koboldcpp.SERVER,
    "library": ollama.SERVER,
}
# A proxy that starts and stops servers by the model of a request: counting would load models.
_LOADS_WHEN_ASKED = ("llama-swap",)


def by_listing(answer: Answer, listed: Sequence[Listed]) -> Server | None:
    """What the answer to `/v1/models` shows; Fault where a count would load a model."""
    if answer.headers.get("server", "").lower() == "llama.cpp":
        return llamacpp.SERVER
    if any(name.startswith("x-litellm-") for name in answer.headers):
        return litellm.SERVER
    for owner in {entry.owned_by for entry in listed if entry.owned_by}:
        if owner in _LOADS_WHEN_ASKED:
            raise Fault("unsupported", f"{owner} loads a model when it is asked to count")
        if owner in _OWNERS:
            return _OWNERS[owner]
    if any(entry.id.startswith("koboldcpp/") for entry in listed):
        return koboldcpp.SERVER
    return None


@dataclass(frozen=True)
class Recognised:
    """A kind of server, and what it made of the first probe text where that showed it."""

    server: Server
    first_count: int | None = None


async def by_asking(connection: Connection, model: str, greets: bool) -> Recognised:
    """Greetings first, where there may be one, then POSTs.

    Raises Fault where the server counts in no way that is known.
    """
    greeted = await by_greeting(connection) if greets else None
    return Recognised(greeted) if greeted else await _by_shape(connection, model)


async def by_greeting(connection: Connection) -> Server | None:
    """Servers that must not be sent a POST to find out.

    LM Studio says 200 to everything, LocalAI loads what a request names.
    """
    greeting = await connection.get("/lmstudio-greeting")
    if isinstance(greeting.body, Mapping) and greeting.body.get("lmstudio") is True:
        return lmstudio.SERVER
    front = await connection.get("/")
    if front.status == 200 and front.text.startswith("Ollama is running"):
        return ollama.SERVER
    system = await connection.get("/system")
    if isinstance(system.body, Mapping) and "loaded_models" in system.body:
        return localai.SERVER
    return None


async def _by_shape(connection: Connection, model: str) -> Recognised:
    """One request that fits llama.cpp, vLLM and TGI at once; the answer's shape shows which."""
    body: dict[str, object] = {}
    for server in (llamacpp.SERVER, vllm.SERVER, tgi.SERVER):
        if server.text:
            body |= server.text(model, plausible.TEXTS[0]).body
    answer = await connection.post("/tokenize", body)
    found = _shape(answer.body)
    if answer.status == 200 and found and found.read_text:
        return Recognised(found, found.read_text(answer.body))
    if answer.status not in (404, 405, 501):
        refuse_unless_ok(answer, without_secrets(connection.root))
    return Recognised(await _by_path(connection, model))


def _shape(body: object) -> Server | None:
    if isinstance(body, list) and body and isinstance(body[0], Mapping) and "id" in body[0]:
        return tgi.SERVER
    if not isinstance(body, Mapping):
        return None
    if "count" in body:
        return vllm.SERVER
    return llamacpp.SERVER if isinstance(body.get("tokens"), list) else None


async def _by_path(connection: Connection, model: str) -> Server:
    """Servers that count elsewhere, each under a path of its own."""
    for server in (koboldcpp.SERVER, llamacpp_python.SERVER):
        if server.text:
            request = server.text(model, plausible.TEXTS[0])
            answer = await connection.post(request.path, request.body)
            if answer.status == 200 and isinstance(answer.body, Mapping):
                return server
    reason = f"{without_secrets(connection.root)} answers no known request that counts"
    raise Fault("unsupported", reason, URL_IN_DOUBT)
