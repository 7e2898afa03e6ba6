"""Tests that the installed version of pygls has the internals that the server uses."""

from __future__ import annotations

import inspect

import pytest
from pygls.protocol import JsonRPCProtocol, LanguageServerProtocol
from pygls.protocol.json_rpc import JsonRPCProtocol as Base


@pytest.mark.parametrize("name", ["_send_data", "set_writer", "send_request"])
def test_used_pygls_methods_exist(name: str) -> None:
    assert callable(getattr(JsonRPCProtocol, name))


def test_used_pygls_attributes_exist() -> None:
    source = inspect.getsource(Base.__init__)
    for name in ("_request_futures", "_result_types", "writer", "fm", "_converter"):
        assert f"self.{name}" in source


def test_overridden_lifecycle_methods_exist() -> None:
    assert inspect.isgeneratorfunction(LanguageServerProtocol.lsp_initialize)
    assert callable(LanguageServerProtocol.lsp_shutdown)
    assert callable(LanguageServerProtocol.lsp_workspace__execute_command)
