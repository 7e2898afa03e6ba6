"""Chat plugins of another version or shape: silence, and a line in :checkhealth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.neovim.chat_conversation import EACH

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.neovim.chat_plugins import ChatPlugin

pytestmark = pytest.mark.plugins

CHANGED = {
    "codecompanion": ("codecompanion.http", "send_sync"),
    "CopilotChat": ("CopilotChat", "stop"),
    "avante": ("avante.llm", "curl"),
}


@EACH
def test_another_shape_is_silence_and_a_line_in_checkhealth(
    begin: Callable[..., Any], plugin: ChatPlugin
) -> None:
    module, member = CHANGED[plugin.name]
    editor, _, _ = begin(plugin, waits=False, before=f"require('{module}').{member} = nil")
    editor.command("checkhealth token_sidecar")
    lines = "\n".join(editor.lua("return vim.api.nvim_buf_get_lines(0, 0, -1, false)"))
    assert f"{plugin.name} is not followed: no function {member}; known to work: " in lines
    assert editor.messages() == []
