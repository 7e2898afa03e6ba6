"""The internals of pygls that the server uses exist in the installed release."""

from __future__ import annotations

import inspect

import pytest
from pygls.protocol import JsonRPCProtocol, LanguageServerProtocol
from pygls.protocol.json_rpc import JsonRPCProtocol as Base


@pytest.mark.parametrize(
    "name",
    [
        "_send_data",
        "set_writer",
        "send_request",
    ],
)
def test_methods_that_we_override_or_call(name: str) -> None:
    assert callable(getattr(JsonRPCProtocol, name))


def test_attributes_that_we_use() -> None:
    source = inspect.getsource(Base.__init__)
    for name in ("_request_futures", "_result_types", "writer", "fm", "_converter"):
        assert f"self.{name}" in source


def test_life_cycle_methods() -> None:
    assert inspect.isgeneratorfunction(LanguageServerProtocol.lsp_initialize)
    assert callable(LanguageServerProtocol.lsp_shutdown)
    assert callable(LanguageServerProtocol.lsp_workspace__execute_command)
