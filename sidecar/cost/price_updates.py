"""Downloads a newer price list at the user's request."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.config.safe_files import make_folder, write
from sidecar.endpoints.http import is_encoded, without_secrets
from sidecar.errors import SidecarError
from sidecar.models.price_list import parse_list

if TYPE_CHECKING:
    import httpx

LARGEST_LIST = 64 * 1024 * 1024
_SECONDS = 30.0
_PLAIN = {"Accept-Encoding": "identity"}


class UpdateError(SidecarError):
    """The price list cannot be downloaded, parsed or stored."""

    kind = "endpoint"


def update_prices(target: Path, url: str | None = None) -> int:
    """Download the price list to `target`, and return the number of models with a price.

    Raises:
        UpdateError: The download failed. An existing file is left unchanged.
    """
    from genai_prices.update_prices import DEFAULT_UPDATE_URL

    data = _fetch_list(url or DEFAULT_UPDATE_URL)
    try:
        found = parse_list(data)
    except ValueError as error:
        raise UpdateError("the downloaded file is not in genai-prices' format") from error
    try:
        make_folder(target.parent)
        write(target, data)  # atomically, because other processes may be reading the file
    except OSError as error:
        raise UpdateError(f"{target} cannot be written: {error.strerror}") from error
    return sum(len(provider.models) for provider in found.providers)


def _fetch_list(url: str) -> bytes:
    import httpx

    try:
        with httpx.stream(
            "GET", url, headers=_PLAIN, timeout=_SECONDS, follow_redirects=True
        ) as answer:
            answer.raise_for_status()
            return _read_answer(answer)
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        raise UpdateError(f"{without_secrets(url)} returned HTTP {status}") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        where, reason = without_secrets(url), re.sub(r"^\[Errno -?\d+\] ", "", str(error))
        raise UpdateError(f"cannot download the price list from {where}: {reason}") from error


def _read_answer(answer: httpx.Response) -> bytes:
    if is_encoded(answer.headers):
        raise UpdateError("the server compressed the price list without being asked to")
    data = bytearray()
    for chunk in answer.iter_raw():
        data += chunk
        if len(data) > LARGEST_LIST:
            raise UpdateError("the price list is larger than 64 MB")
    return bytes(data)
