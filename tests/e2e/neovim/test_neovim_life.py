"""Tests that the server is started lazily, restarted after a crash, and reported if missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.neovim.harness import NVIM, SERVER, SHIM, Editor, environment, wait_for
from tests.truth import truth

OURS_LOADED = """
  return vim.tbl_filter(function(name)
    return name:find('^token_sidecar') ~= nil
  end, vim.tbl_keys(package.loaded))"""


@pytest.fixture
def running(clean: Editor) -> Editor:
    """The shared editor with a counted file and one server."""
    clean.edit("a.txt", "Hello, world!\n", tokens=4)
    wait_for(lambda: len(clean.server_pids()) == 1, "the servers of earlier tests to exit")
    return clean


def test_nothing_is_loaded_before_a_file_is_shown(open_editor: Callable[..., Editor]) -> None:
    editor = open_editor("vim.o.statusline = ''")
    assert editor.lua(OURS_LOADED) == []
    assert editor.lua("return package.loaded['vim.lsp'] == nil")
    assert editor.server_pids() == []
    editor.edit("a.md", "Hello, world!\n", tokens=4)
    assert len(editor.server_pids()) == 1


def test_startup_reads_one_of_our_files(tmp_path: Path) -> None:
    """Neovim loads only one of our files when it starts.

    `benchmarks/neovim_startup.py` measures how long this takes.
    """
    (tmp_path / "a.md").write_text("Hello, world!\n")
    init, log = tmp_path / "init.lua", tmp_path / "startup.log"
    init.write_text(f"vim.opt.runtimepath:prepend('{SHIM}')\n")
    argv = [str(NVIM), "--headless", "--clean", "-n", "-u", str(init), "--startuptime", str(log)]
    subprocess.run([*argv, str(tmp_path / "a.md"), "+qall!"], env=environment(tmp_path), check=True)
    read = [line.split()[-1] for line in log.read_text().splitlines() if str(SHIM) in line]
    assert read == [str(SHIM / "plugin/token_sidecar.lua")]


def test_enabling_the_server_by_hand_works(open_editor: Callable[..., Editor]) -> None:
    editor = open_editor("vim.g.token_sidecar_enabled = false; vim.lsp.enable('token_sidecar')")
    editor.edit("a.md", "Hello, world!\n", tokens=4)
    editor.edit("no-type", "one two three\n", tokens=truth("one two three\n"))


def test_a_user_without_a_home_gets_counts(open_editor: Callable[..., Editor]) -> None:
    """Containers often have no home folder. The server then starts in another folder, but never in
    the workspace.
    """
    editor = open_editor(HOME="/nonexistent")
    editor.edit("a.md", "Hello, world!\n", tokens=4)
    [pid] = editor.server_pids()
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    editor.command("checkhealth token_sidecar")
    shown = "\n".join(editor.lua("return vim.api.nvim_buf_get_lines(0, 0, -1, false)"))
    about_the_server = shown.partition("token-sidecar: configuration")
    assert about_the_server[1]
    assert "ERROR" not in about_the_server[0]


def test_the_plugin_can_be_disabled(open_editor: Callable[..., Editor]) -> None:
    editor = open_editor("vim.g.token_sidecar_enabled = false; vim.o.statusline = ''")
    editor.edit("a.md", "Hello, world!\n")
    editor.edit("b")
    editor.lua("vim.wait(300)")
    assert editor.lua(OURS_LOADED) == []
    assert editor.server_pids() == []


def test_disabling_lasts(editor: Editor) -> None:
    editor.edit("a.md", "Hello, world!\n", tokens=4)
    editor.lua("vim.lsp.enable('token_sidecar', false)")
    wait_for(lambda: editor.server_pids() == [], "the server to exit")
    assert editor.variable("token_sidecar_status") is None
    editor.edit("b.txt", "one\n")
    editor.edit("no-type", "one\n")
    editor.lua("vim.wait(300)")
    assert editor.server_pids() == []
    assert editor.messages() == []


def test_filetypes_can_be_chosen(open_editor: Callable[..., Editor]) -> None:
    editor = open_editor("vim.lsp.config('token_sidecar', { filetypes = { 'markdown' } })")
    editor.edit("no-type", "one\n")
    editor.edit("a.py", "one\n")
    editor.edit("a.md", "Hello, world!\n", tokens=4)
    attached = editor.lua(
        "return vim.tbl_keys(vim.lsp.get_clients({ name = 'token_sidecar' })[1].attached_buffers)"
    )
    assert attached == [editor.lua("return vim.api.nvim_get_current_buf()")]


def test_a_plugin_loaded_late_attaches_to_open_files(open_editor: Callable[..., Editor]) -> None:
    editor = open_editor(f"vim.opt.runtimepath:remove('{SHIM}'); vim.o.statusline = ''")
    editor.edit("no-type", "Hello, world!\n")
    editor.lua(
        "vim.opt.runtimepath:prepend(...); vim.cmd.runtime('plugin/token_sidecar.lua')", str(SHIM)
    )
    editor.wait_tokens(4)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_server_is_restarted_with_one_message(editor: Editor, number: int) -> None:
    editor.edit("a.md", "Hello, world!\n", tokens=4)
    editor.edit("b", "one two three\n", tokens=truth("one two three\n"))
    (pid,) = editor.server_pids()
    os.kill(pid, number)
    editor.wait_message("restarting (1 of 3)")
    editor.wait_tokens(truth("one two three\n"))
    editor.keys("Gofour<Esc>")
    editor.wait_tokens(truth("one two three\nfour\n"))
    editor.command("buffer! a.md")
    editor.wait_tokens(4)
    assert len(editor.messages()) == 1
    assert len(editor.server_pids()) == 1


def test_the_fourth_crash_within_three_minutes_is_final(editor: Editor) -> None:
    editor.edit("a.md", "Hello, world!\n")
    for nth in (1, 2, 3):
        editor.wait_tokens(4)
        (pid,) = editor.server_pids()
        os.kill(pid, signal.SIGKILL)
        editor.wait_message(f"restarting ({nth} of 3)")
    editor.wait_tokens(4)
    os.kill(editor.server_pids()[0], signal.SIGKILL)
    editor.wait_message(":TokenSidecar restart")
    assert editor.status() == {}
    assert editor.server_pids() == []
    # Opening or saving a file does not start the server again. Only the user can start it.
    editor.edit("b.md", "another\n")
    editor.command("silent write")
    time.sleep(0.5)
    assert editor.server_pids() == []
    assert len(editor.messages()) == 4
    editor.edit("a.md")
    editor.command("TokenSidecar count")
    editor.wait_message("4 tokens (exact, gpt-5)")
    editor.wait_tokens(4)
    assert len(editor.messages()) == 5


def test_a_python_interpreter_is_probed_for_the_module_at_once(
    open_editor: Callable[..., Editor], tmp_path: Path
) -> None:
    """If the command is not on PATH, the plugin checks whether a Python interpreter has the
    module.
    """
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    editor = open_editor(
        """
        _G.probes, _G.system = 0, vim.system
        vim.system = function(argv, ...)
          if argv[3] == '-c' then _G.probes = _G.probes + 1 end
          return _G.system(argv, ...)
        end""",
        TOKEN_SIDECAR_CMD="",
        PATH=f"{python.parent}:/usr/bin:/bin",
    )
    editor.edit("first.md", "Hello, world!\n", tokens=4)
    asked = editor.lua("return _G.probes")
    assert asked >= 1
    for number in range(4):
        editor.edit(f"{number}.md", "Hello, world!\n", tokens=4)
    assert editor.lua("return _G.probes") == asked


@pytest.mark.parametrize("end", ["kill", "restart"])
def test_the_chosen_model_outlives_the_server(running: Editor, end: str) -> None:
    running.edit("a.md", "日本語\n", tokens=truth("日本語\n"))
    running.command("TokenSidecar model gpt-4")
    tokens = truth("日本語\n", "cl100k_base")
    assert tokens != truth("日本語\n")
    running.wait_tokens(tokens)
    (first,) = running.server_pids()
    if end == "kill":
        os.kill(first, signal.SIGKILL)
    else:
        running.command("TokenSidecar restart")
    wait_for(lambda: running.server_pids() not in ([], [first]), "another process")
    running.wait_tokens(tokens)
    running.command("TokenSidecar count")
    running.wait_message(f"{tokens} tokens (exact, gpt-4)")


def test_a_requested_restart_is_not_a_crash(running: Editor) -> None:
    (first,) = running.server_pids()
    running.command("TokenSidecar restart")
    wait_for(lambda: running.server_pids() not in ([], [first]), "another process")
    running.wait_tokens(4)
    message = running.wait_message("the server was restarted")
    assert running.messages() == [message]


@pytest.mark.parametrize("restart", ["TokenSidecar restart", "call system('kill -9 ' . g:pid)"])
def test_edits_during_a_restart_are_not_lost(running: Editor, restart: str) -> None:
    (first,) = running.server_pids()
    running.command(f"let g:pid = {first}")
    running.command(restart)
    text = "Hello, world!\n"
    for number in range(10):
        running.lua("vim.api.nvim_buf_set_lines(0, -1, -1, true, { ... })", f"line {number}")
        running.lua("vim.wait(20)")
        text += f"line {number}\n"
    wait_for(lambda: running.server_pids() not in ([], [first]), "another process")
    running.wait_tokens(truth(text))
    running.lua("vim.api.nvim_buf_set_lines(0, -1, -1, true, { 'the end' })")
    running.wait_tokens(truth(text + "the end\n"))
    wait_for(lambda: len(running.server_pids()) == 1, "the first server to exit")


def test_a_hanging_server_is_replaced(running: Editor) -> None:
    (first,) = running.server_pids()
    os.kill(first, signal.SIGSTOP)
    running.lua("vim.api.nvim_buf_set_lines(0, -1, -1, true, { 'one two three' })")
    running.command("TokenSidecar restart")
    running.wait_tokens(truth("Hello, world!\none two three\n"))
    os.kill(first, signal.SIGCONT)
    wait_for(lambda: len(running.server_pids()) == 1, "the first server to exit")
    message = running.wait_message("the server was restarted")
    assert running.messages() == [message]
    running.wait_tokens(truth("Hello, world!\none two three\n"))


def test_a_missing_server_causes_one_message(open_editor: Callable[..., Editor]) -> None:
    editor = open_editor(TOKEN_SIDECAR_CMD="/nowhere/token-sidecar")  # noqa: S106
    editor.edit("a.md", "Hello, world!\n")
    editor.edit("b", "Hello, world!\n")
    editor.edit("c.py", "pass\n")
    clone = SHIM.parent.parent
    told = editor.wait_message("no server").replace("~", str(Path.home()))
    assert told.endswith(f"pipx install {clone}")
    assert (clone / "pyproject.toml").exists()
    editor.lua("vim.wait(200)")
    assert len(editor.messages()) == 1
    assert editor.lua("return require('token_sidecar').statusline()") == ""
    editor.command("checkhealth token_sidecar")
    report = editor.lua("return table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, true), '\\n')")
    assert "ERROR" in report
    assert "pipx install" in report


def test_a_python_without_the_package_causes_one_message(
    open_editor: Callable[..., Editor], tmp_path: Path
) -> None:
    """If `python3` lacks the module, the plugin does not keep starting `python3`."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python3").write_text("#!/bin/sh\nexit 1\n")
    (programs / "python3").chmod(0o755)
    editor = open_editor(TOKEN_SIDECAR_CMD="", PATH=f"{programs}:/usr/bin:/bin")
    editor.edit("a.md", "Hello, world!\n")
    editor.wait_message("no server")
    editor.lua("vim.wait(200)")
    assert len(editor.messages()) == 1


def test_a_workspace_folder_named_sidecar_is_not_run(
    open_editor: Callable[..., Editor], tmp_path: Path
) -> None:
    """If the command is missing, the plugin runs `python3 -P -m sidecar`.

    This runs the installed package, and not the package in the workspace.
    """
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "python3").chmod(0o755)
    editor = open_editor(TOKEN_SIDECAR_CMD="", PATH=f"{programs}:/usr/bin:/bin")
    trap = editor.write("sidecar/__init__.py", "raise SystemExit('the wrong package')\n").parent
    (trap / "__main__.py").write_text("raise SystemExit('the wrong package')\n")
    editor.command(f"cd {editor.workspace}")
    editor.edit("a.md", "Hello, world!\n", tokens=4)


def test_the_plain_configuration_of_the_help_works_without_the_plugin(
    open_editor: Callable[..., Editor],
) -> None:
    """Runs the code in the help section `token-sidecar-plain` unchanged."""
    section = (SHIM / "doc/token-sidecar.txt").read_text().split("*token-sidecar-plain*")[1]
    written = section.split(">lua\n")[1].split("\n<")[0]
    editor = open_editor(
        f"vim.opt.runtimepath:remove('{SHIM}'); vim.o.statusline = ''\n{written}",
        PATH=f"{SERVER.parent}:{os.environ['PATH']}",
    )
    editor.write(".token-sidecar.toml", '[[budget]]\nfiles = "*.md"\nmax-tokens = 3\n')
    editor.edit("a.md", "Hello, world!\n")
    over = "return vim.tbl_map(function(each) return each.code end, vim.diagnostic.get(0))"
    wait_for(lambda: editor.lua(over) == ["budget-exceeded"], "the project's budget")
    ask = """
      local client = vim.lsp.get_clients({ bufnr = 0 })[1]
      local params = { textDocument = { uri = vim.uri_from_bufnr(0) } }
      return client and client.initialized and client:request_sync('tokens/count', params, 20000)"""
    answer = wait_for(lambda: editor.lua(ask), "the client")
    assert answer["result"]["tokens"] == 4
    assert editor.lua(OURS_LOADED) == []


def test_two_folders_have_separate_servers(editor: Editor) -> None:
    for name, budget in (("one", 100), ("two", 3)):
        rule = f'[[budget]]\nfiles = "*.md"\nmax-tokens = {budget}\n'
        editor.write(f"{name}/.token-sidecar.toml", rule)
        editor.edit(f"{name}/a.md", "Hello, world!\n", tokens=4)
        status = wait_for(lambda: editor.status()["document"]["budget"], "the budget")
        assert status == budget
        assert editor.status()["workspace"].endswith(f"/{name}")
    assert editor.status()["severity"] == "warning"
    editor.command("buffer one/a.md")
    assert editor.status()["severity"] == "ok"
    assert len(editor.server_pids()) == 2


def test_leaving_neovim_stops_the_server(open_editor: Callable[..., Editor]) -> None:
    editor = open_editor()
    editor.edit("a.md", "Hello, world!\n", tokens=4)
    (pid,) = editor.server_pids()
    editor.close()
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"), "the server to exit")
