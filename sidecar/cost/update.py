"""A newer price list, fetched only when the user asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.config.private import make_folder, write
from sidecar.endpoints.address import without_secrets
from sidecar.endpoints.http import coded
from sidecar.errors import SidecarError
from sidecar.models.price_list import parse_list

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

LARGEST_LIST = 64 * 1024 * 1024
_SECONDS = 30.0
_PLAIN = {"Accept-Encoding": "identity"}


class UpdateError(SidecarError):
    """The list could not be fetched, or is none; the message says which."""

    kind = "endpoint"


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
        with httpx.stream(
            "GET", url, headers=_PLAIN, timeout=_SECONDS, follow_redirects=True
        ) as answer:
            answer.raise_for_status()
            return _read(answer)
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        raise UpdateError(f"{without_secrets(url)} answered HTTP {status}") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        where = without_secrets(url)
        raise UpdateError(f"the price list could not be fetched from {where}: {error}") from error


def _read(answer: httpx.Response) -> bytes:
    if coded(answer.headers):
        raise UpdateError("the price list came compressed though it was asked for as it is")
    data = bytearray()
    for chunk in answer.iter_raw():
        data += chunk
        if len(data) > LARGEST_LIST:
            raise UpdateError("the price list is larger than 64 MB")
    return bytes(data)


def _replace(target: Path, data: bytes) -> None:
    """Write whole or not at all: other processes read this file."""
    try:
        make_folder(target.parent)
        write(target, data)
    except OSError as error:
        raise UpdateError(f"{target} cannot be written: {error.strerror}") from error
