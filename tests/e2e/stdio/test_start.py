"""Tests which modules a server imports before its first exact count."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from benchmarks.agents.claude import ClaudeHome
from benchmarks.client import StdioClient
from benchmarks.corpus import source_text
from sidecar.agents.folders import Places, Roots, has_files
from sidecar.agents.reader_registry import readers_here, readers_of
from sidecar.config.settings import Agents

# Logs imports. Deferred work starts after 30 seconds instead of half a second, so that the first
# count is done by then, even on a slow machine.
SERVER = """
import sys

class Log:
    def find_spec(name, *_):
        print(name, file=sys.stderr, flush=True)

sys.meta_path.insert(0, Log)
from sidecar.server import server
from sidecar.server.features import configuration
server.WATCH_SECONDS = configuration.CATALOGUE_SECONDS = 30.0
from sidecar.server.run import run
run()
"""
# `tomllib` is missing, because a worker reads the known agents with it meanwhile.
LIBRARIES = (
    "click", "email", "genai_prices", "httpx", "jinja2", "pathspec", "PIL", "pydantic", "rich",
    "sqlite3", "tiktoken", "tokenizers", "urllib.request", "watchdog",
)  # fmt: skip
PACKAGES = (
    "sidecar.agents.readers", "sidecar.cli", "sidecar.config.load",
    "sidecar.conversations.conversation", "sidecar.cost", "sidecar.counting.vocabulary_files",
    "sidecar.endpoints.endpoints",
    "sidecar.endpoints.http",
    "sidecar.conversations.changes", "sidecar.workspace.conversations", "sidecar.agents.session_index",
)  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all configuration files."""
    monkeypatch.delenv("TOKEN_SIDECAR_CONFIG")
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)


def imported(tmp_path: Path, until: str) -> set[str]:
    """Return the modules that a server imports before it first shows a count or a context."""
    log = tmp_path / "imports"
    with log.open("wb") as stderr:
        client = StdioClient([sys.executable, "-P", "-c", SERVER], stderr)
    client.initialize(tmp_path)
    uri = (tmp_path / "doc.py").as_uri()
    client.open(source_text(10_000), uri)
    client.request("tokens/count", {"textDocument": {"uri": uri}})
    while until == "context" and not any(
        notification.get("method") == "status/update" and notification["params"]["context"]
        for notification in client.notifications
    ):
        client.notifications.append(client.receive())
    modules = set(log.read_text().splitlines())
    client.close()
    return modules


def of(names: tuple[str, ...], modules: set[str]) -> list[str]:
    """Return the modules and packages with these names, including the packages' modules."""
    return sorted(
        module for module in modules if any(f"{module}.".startswith(f"{n}.") for n in names)
    )


def test_the_first_count_imports_only_what_it_needs(tmp_path: Path) -> None:
    modules = imported(tmp_path, "count")
    assert "splintr" in modules
    found = set(of((*LIBRARIES, *PACKAGES), modules))
    # Pure modules, which the types of sessions and of the context's protocol need.
    light = ("cache_losses", "context_costs", "ledger_events")
    assert found == {"sidecar.cost", *(f"sidecar.cost.{name}" for name in light)}


def test_only_readers_of_installed_agents_are_imported(tmp_path: Path) -> None:
    home = ClaudeHome(tmp_path / "home" / ".claude")
    home.clock.now = datetime.now(UTC) - timedelta(minutes=50)
    home.session(tmp_path).reply()
    modules = imported(tmp_path, "context")
    readers = of(("sidecar.agents.readers",), modules)
    assert [name.rpartition(".")[2] for name in readers] == ["readers", "claude_code"]
    for_conversations = (
        "sidecar.conversations.conversation",
        "sidecar.conversations.pruning",
        "sidecar.workspace.conversations",
    )
    assert of(for_conversations, modules) == []


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
@pytest.mark.parametrize("named", [False, True])
def test_an_agent_is_installed_if_its_reader_finds_its_folder(
    tmp_path: Path, platform: str, *, named: bool
) -> None:
    variables = [
        "CLAUDE_CONFIG_DIR", "CLINE_DIR", "CODEX_HOME", "CONTINUE_GLOBAL_DIR", "COPILOT_HOME",
        "CRUSH_GLOBAL_DATA", "GOOSE_PATH_ROOT", "KIMI_SHARE_DIR", "GEMINI_CLI_HOME",
        "PI_CODING_AGENT_DIR", "QWEN_HOME", "VIBE_HOME", "VSCODE_PORTABLE",
    ]  # fmt: skip
    env = {name: str(tmp_path / name) for name in variables} if named else {}
    places = Places(home=tmp_path / "empty", env=env, platform=platform)
    assert readers_here(Agents(), places, Roots(())) == ()
    for reader in readers_of(Agents()):
        for number, folder in enumerate(reader.folders(places)):
            at = Places(
                home=tmp_path / f"{platform}-{named}-{reader.agent}-{number}",
                env=env,
                platform=platform,
            )
            made = at.home / str(folder).removeprefix(str(places.home)).lstrip("/\\")
            if named and not str(folder).startswith(str(places.home)):
                continue
            made.mkdir(parents=True)
            assert has_files(at, reader.agent, ())


def test_aider_is_found_in_a_project_with_its_history(tmp_path: Path) -> None:
    (tmp_path / ".aider.chat.history.md").write_text("")
    here = readers_here(Agents(), Places(home=tmp_path / "home"), Roots((str(tmp_path),)))
    assert [one.agent for one in here] == ["aider"]
