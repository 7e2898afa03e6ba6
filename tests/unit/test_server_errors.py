"""Tests that errors become JSON-RPC errors with a code, a message, a kind and `retryable`."""

from __future__ import annotations

import pytest
from pygls.exceptions import JsonRpcException

from sidecar.conversations.sections import no_text
from sidecar.cost.ledger import LedgerError, ReadCancelledError
from sidecar.cost.price_updates import UpdateError
from sidecar.counting.exact_engines import DamagedRanksError
from sidecar.counting.vocabulary_files import VocabularyError
from sidecar.errors import BadParamsError, RequestError, SidecarError, VendorFormatError
from sidecar.server.protocol import error_for_exception


@pytest.mark.parametrize(
    ("error", "code", "kind", "retryable"),
    [
        (RequestError("trust", "m"), -32803, "trust", False),
        (BadParamsError("m"), -32602, "badParams", False),
        (VendorFormatError("m"), -32602, "badParams", False),
        (no_text(), -32803, "noText", False),
        (LedgerError("m"), -32803, "storage", True),
        (ReadCancelledError("m"), -32803, "storage", True),
        (DamagedRanksError("m"), -32803, "storage", False),
        (VocabularyError("m"), -32803, "config", False),
        (UpdateError("m"), -32803, "endpoint", False),
    ],
)
def test_each_error_has_its_code_and_kind(
    error: SidecarError, code: int, kind: str, retryable: bool
) -> None:
    body = error_for_exception(error)
    assert (body["code"], body["message"]) == (code, str(error))
    assert body["data"] == {"kind": kind, "retryable": retryable}


def test_internal_error_does_not_reveal_its_message() -> None:
    body = error_for_exception(ZeroDivisionError("of a person's text"))
    assert body["data"] == {"kind": "internal", "retryable": False}
    assert "person" not in body["message"]


@pytest.mark.parametrize("name", ["x" * 10_000, "\x1b" * 10_000, "\N{CAT FACE} \u2028" * 5_000])
@pytest.mark.parametrize("kind", [BadParamsError, UpdateError, JsonRpcException])
def test_error_quotes_a_long_name_only_in_part(name: str, kind: type[Exception]) -> None:
    message = error_for_exception(kind(f"there is no {name}; choose another"))["message"]
    assert len(message) < 600
    assert message.startswith("there is no ")
    assert message.endswith("; choose another")
