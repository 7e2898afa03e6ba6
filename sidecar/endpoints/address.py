"""The address and the key of an `[[endpoint]]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit, urlunsplit

from sidecar.endpoints.outcome import EndpointError
from sidecar.text.printable import printable

_REQUESTS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/api/chat", "/api/generate")
BASES = (*_REQUESTS, "/v1", "/api")
"""Endings of addresses that clients use: request paths, and the base paths of OpenAI and Ollama."""

_SET_IT = "set it to the server's key where the editor or the shell is started"


def host_of(url: str) -> str:
    """Return the host of an address, or "" if it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def root_of(url: str, suffixes: Sequence[str]) -> str:
    """Return the address without an ending such as `/v1`. Request paths are appended to it."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    for suffix in suffixes:
        if path.endswith(suffix):
            path = path.removesuffix(suffix).rstrip("/")
            break
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def without_secrets(url: str) -> str:
    """Return an address without user, password, query and fragment, which may be secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an invalid address"
    bare = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    # Without `//` user and password are part of the path.
    return printable(bare if parts.netloc else bare.rpartition("@")[2])


def key_from(variable: str | None, environment: Mapping[str, str]) -> str:
    """Return the API key in an environment variable, or "" if no variable is named.

    Raises:
        EndpointError: The variable is not set, or its value cannot be sent in a header.
    """
    if variable is None:
        return ""
    key, named = environment.get(variable, "").strip(), f"the environment variable {variable}"
    if not key:
        raise EndpointError("auth", f"{named} (api-key-env) is not set", _SET_IT)
    if not (key.isascii() and key.isprintable()):
        raise EndpointError("auth", f"{named} holds no usable key", _SET_IT)
    return key
