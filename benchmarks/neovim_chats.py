"""Measures Neovim's CPU time for our chat integrations, with the real codecompanion, CopilotChat and
avante.

Usage: `python -m benchmarks.neovim_chats [--rounds 20]`. A chat has 400 messages and about 86,000
tokens, followed by prompts with tool calls, which a local server answers. Neovim measures each part
of our plugin: `event` (handling an event of the chat plugin), `request` (reporting a request to our
server) and `reply`. Times far above the median are steps of LuaJIT's garbage collector. The
benchmark also prints how many turns were sent to the server and how many were new. It fails if a
part takes more than 5 ms, or if old turns are sent again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.e2e.neovim.chat_plugins import ALL, PATIENT, ChatPlugin
from tests.e2e.neovim.harness import Editor, wait_for
from tests.e2e.neovim.plugins import folder
from tests.model_server import ModelServer

MESSAGES, MOST_MS = 400, 5.0
TEXT = "The quick brown fox jumps over the lazy dog, and 1234 more follow it down to the sea. " * 9
PROMPT = "What is the weather in Lisbon, and is it a good day for a walk, part {}?"

INNER = """
_G.times = { event = {}, request = {}, reply = {} }
_G.cpu = function()
  local used = vim.uv.getrusage()
  return (used.utime.sec + used.stime.sec) * 1e3 + (used.utime.usec + used.stime.usec) / 1e3
end
local has_avante, sidebar = pcall(require, 'avante.sidebar')
if has_avante then
  local original = sidebar.get_generate_prompts_options
  sidebar.get_generate_prompts_options = function(self, request, cb)
    local start, within = cpu(), 0
    original(self, request, function(opts)
      local before = cpu()
      cb(opts)
      within = cpu() - before
    end)
    _G.plugins_own = cpu() - start - within
  end
end"""
"""Runs before our hooks are set, and measures avante's own share of the time."""
OUTER = """
local function timed(owner, name, label, is_avante)
  local original = owner[name]
  owner[name] = function(...)
    local start = cpu()
    local result = original(...)
    local own = is_avante and _G.plugins_own or 0
    -- If avante sends the prompt, the rest of the time is its own.
    if not (is_avante and select(3, ...)) then table.insert(times[label], cpu() - start - own) end
    return result
  end
end
local name = ...
local chats = require('token_sidecar.integrations.chats')
timed(chats, 'request', 'request')
timed(chats, 'reply', 'reply')
if name == 'avante' then
  timed(require('avante.sidebar'), 'get_generate_prompts_options', 'event', true)
else
  timed(require('token_sidecar.integrations.' .. name:lower()), 'on_event', 'event')
end
_G.turns = 0
local client = require('token_sidecar.server').clients()[1]
local request = client.request
client.request = function(self, method, params, ...)
  _G.turns = _G.turns + (method == 'context/append' and #params.turns or 0)
  return request(self, method, params, ...)
end"""


class Measured(NamedTuple):
    """The results for one chat plugin."""

    times: dict[str, list[float]]
    """Milliseconds of each part of our plugin."""
    tokens: int
    sent: int
    """Turns that the server received."""
    new: int
    """Messages that are new in the chat."""


def _answered(server: ModelServer, number: int) -> bool:
    return len(server.received) >= number


def converse(
    editor: Editor, plugin: ChatPlugin, server: ModelServer, rounds: int, done: int
) -> None:
    """Send prompts, and wait for each reply."""
    for number in range(done, done + rounds):
        editor.lua(plugin.submit, PROMPT.format(number))
        wait_for(partial(_answered, server, 2 * number + 2), "both requests")
        wait_for(lambda: editor.lua(plugin.idle), "the end of the reply")
        if plugin.name == "avante":  # as when its sidebar is opened again
            editor.lua("require('avante').get():reload_chat_history()")
            editor.lua("require('avante').get():show_input_hint()")


def measured(plugin: ChatPlugin, rounds: int) -> Measured:
    """Follow one chat plugin through a long chat."""
    server = ModelServer(plugin.answer, usage=plugin.usage)
    with tempfile.TemporaryDirectory() as kept, server:
        editor = Editor(Path(kept), plugin.lua + PATIENT)
        editor.command(f"cd {editor.workspace}")
        editor.edit("a.md", "Hello, world!\n")
        editor.wait_tokens(4)
        plugin.start(editor, server, INNER)
        editor.lua(plugin.fill, MESSAGES, TEXT)
        converse(editor, plugin, server, 1, 0)
        held = len(server.received[-1].body["messages"])
        editor.lua(OUTER, plugin.name)
        converse(editor, plugin, server, rounds, 1)
        last = server.received[-1]
        times, sent = editor.lua("return times"), editor.lua("return turns")
        editor.close()
    return Measured(times, last.prompt, sent, len(last.body["messages"]) - held)


def printed(name: str, found: Measured) -> float:
    """Print the figures of a chat plugin, and return the longest time in milliseconds."""
    worst = 0.0
    for part, each in sorted(found.times.items()):
        if not each:  # CopilotChat has no events of its own
            continue
        times = sorted(each)
        middle, high = times[len(times) // 2], times[int(len(times) * 0.95)]
        worst = max(worst, times[-1])
        figures = f"p50 {middle:5.2f} ms  p95 {high:5.2f} ms  most {times[-1]:5.2f} ms"
        print(f"  {name:14}{part:8}{len(each):4} times  {figures}")
    print(
        f"  {name:14}{found.tokens:,} tokens, {found.sent} turns sent, {found.new} new", flush=True
    )
    return worst


def run(rounds: int = 20) -> int:
    """Print the figures of each chat plugin. The exit code is 1 if a limit is exceeded."""
    if folder() is None:
        print("\nFollowing a long chat in Neovim: the chat plugins are not installed")
        return 0
    print(f"\nFollowing a chat of {MESSAGES} messages in Neovim, ms of the editor's processor time")
    failed = False
    for plugin in ALL:
        found = measured(plugin, rounds)
        failed = printed(plugin.name, found) > MOST_MS or found.sent > found.new or failed
    return int(failed)


def main() -> int:
    """Run only this benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20)
    return run(parser.parse_args().rounds)


if __name__ == "__main__":
    sys.exit(main())
