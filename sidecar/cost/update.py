"""A newer price list, fetched only when the user asks for it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from sidecar.cost.price_list import parse_list

LARGEST_LIST = 64 * 1024 * 1024
_SECONDS = 30.0


class UpdateError(Exception):
    """The list could not be fetched, or is none; the message says which."""


def list_url() -> str:
    """Where genai-prices publishes its list."""
    from genai_prices.update_prices import DEFAULT_UPDATE_URL

    return DEFAULT_UPDATE_URL


def update_prices(target: Path, url: str | None = None) -> int:
    """Fetch the list into `target` (mode 0600) and return how many models it prices.

    What was there stays when anything goes wrong: UpdateError.
    """
    data = _fetch(url or list_url())
    try:
        found = parse_list(data)
    except ValueError as error:
        raise UpdateError("what was fetched is no price list of genai-prices") from error
    _replace(target, data)
    return sum(len(provider.models) for provider in found.providers)


def _fetch(url: str) -> bytes:
    import httpx

    try:
        with httpx.stream("GET", url, timeout=_SECONDS, follow_redirects=True) as answer:
            answer.raise_for_status()
            data = b""
            for chunk in answer.iter_bytes():
                data += chunk
                if len(data) > LARGEST_LIST:
                    raise UpdateError("the price list is larger than 64 MB")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UpdateError(f"the price list could not be fetched from {url}: {error}") from error
    return data


def _replace(target: Path, data: bytes) -> None:
    """Write whole or not at all: other processes read this file."""
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name)
        new = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        new.replace(target)
    except OSError as error:
        raise UpdateError(f"{target} cannot be written: {error.strerror}") from error
