"""What an endpoint's declaration means: the root of its paths, and the key to show there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit, urlunsplit

from sidecar.endpoints.outcome import Fault
from sidecar.text.printable import printable

_REQUESTS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/api/chat", "/api/generate")
BASES = (*_REQUESTS, "/v1", "/api")
"""What clients' addresses of a server end in: a request's, OpenAI's form, and Ollama's own."""

_SET_IT = "set it to the server's key where the editor or the shell is started"


def host_of(url: str) -> str:
    """The host alone, or "" where there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def root_of(url: str, suffixes: Sequence[str]) -> str:
    """The address that paths are put after: the address given to clients often ends in `/v1`."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    for suffix in suffixes:
        if path.endswith(suffix):
            path = path.removesuffix(suffix).rstrip("/")
            break
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def without_secrets(url: str) -> str:
    """The address without what may be a secret in it: user and password, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an address that is none"
    bare = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    # Without `//` the user and password stand in the path.
    return printable(bare if parts.netloc else bare.rpartition("@")[2])


def key_from(variable: str | None, environment: Mapping[str, str]) -> str:
    """The key in the named environment variable; "" where none is named.

    Raises Fault where the variable is not set or cannot be a header. Never quotes the key.
    """
    if variable is None:
        return ""
    key, named = environment.get(variable, "").strip(), f"the environment variable {variable}"
    if not key:
        raise Fault("auth", f"{named} (api-key-env) is not set", _SET_IT)
    if not (key.isascii() and key.isprintable()):
        raise Fault("auth", f"{named} holds no usable key", _SET_IT)
    return key
