"""`token-sidecar config`: creates, shows and checks the configuration."""

from __future__ import annotations

import json
import re
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click
import msgspec

from sidecar import typed
from sidecar.cli.group import workspace_option
from sidecar.cli.output import print_json, print_lines, warn
from sidecar.text.tables import align_columns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sidecar.config.settings import Loaded, Settings

_WORKSPACE = workspace_option("Workspace folder")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def config() -> None:
    """Create, show and check the configuration."""


@config.command()
@_WORKSPACE
@click.option(
    "--user",
    is_flag=True,
    help="Create your own configuration file instead of the project's. It can also set endpoints "
    "and prices.",
)
@_JSON
def init(root: Path, user: bool, as_json: bool) -> None:
    """Create a sample configuration with comments. Existing files are never overwritten.

    Exit codes: 0; 2 if the file already exists or cannot be written, or if the project is
    configured in `pyproject.toml`.
    """
    from sidecar.config.paths import config_file, has_section, project_files

    own, pyproject = project_files(root)
    path = config_file() if user else own
    if not user and has_section(pyproject):
        warn(
            f"{pyproject} has settings in [tool.token-sidecar], which {path.name} would replace; "
            "add yours there"
        )
        sys.exit(2)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(_sample(user=user))
    except FileExistsError:
        warn(f"{path} already exists; it was not changed")
        sys.exit(2)
    except OSError as error:
        warn(f"cannot write {path}: {error.strerror or 'unknown reason'}")
        sys.exit(2)
    if as_json:
        print_json({"written": str(path)})
    else:
        print_lines(
            f"Created {path}",
            "All keys are commented out. To set one, uncomment it and its [table] line.",
        )


@config.command()
@_WORKSPACE
@_JSON
@click.argument("key", required=False)
def show(root: Path, as_json: bool, key: str | None) -> None:
    """Show the current settings and where each of them is set.

    KEY selects a table or a single setting, such as `context` or `context.limit`.

    Exit codes: 0; 2 if KEY is unknown.
    """
    from sidecar.config.load import load

    rows = [row for row in list_values(load(root)) if key is None or _is_in(row["key"], key)]
    if not rows:
        raise click.UsageError(
            f"unknown setting: {key}; `token-sidecar config show` lists all settings"
        )
    if as_json:
        print_json({"values": rows})
    else:
        cells = [(row["key"], f"{row['value']}  ({row['from']})") for row in rows]
        print_lines(*align_columns(cells))


@config.command()
@_WORKSPACE
@_JSON
def check(root: Path, as_json: bool) -> None:
    """Report problems in the configuration and in its tokenizer files.

    Models that are not known are also named.

    Exit codes: 0 if there are no problems, even if a model is unknown; 2 otherwise.
    """
    from sidecar.config.load import load

    loaded = load(root)
    problems, warnings = list_problems(loaded), list(_unknown_models(loaded.settings))
    if as_json:
        print_json({"problems": problems, "warnings": warnings})
    else:
        lines = [*problems, *(f"warning: {text}" for text in warnings)]
        print_lines(*(lines or ("No problems.",)))
    sys.exit(2 if problems else 0)


def _sample(*, user: bool) -> str:
    """Return a sample configuration with all keys commented out.

    Only the user's own file has the keys that may be set only there.
    """
    project = typed.read_text("sidecar.config", "sample.toml")
    if not user:
        return project
    own = typed.read_text("sidecar.config", "sample_user.toml")
    return project.replace("Project settings", "User settings") + own


def _unknown_models(settings: Settings) -> Iterator[str]:
    """Yield a warning for each model in the settings that is not known."""
    from sidecar.workspace.views import unknown_model_text

    named = (settings.model, *(budget.model for budget in settings.budgets if budget.model))
    for model in dict.fromkeys(named):
        if text := unknown_model_text(model, settings):
            yield text


def list_problems(loaded: Loaded) -> list[str]:
    """Return the problems in the settings and in their tokenizer files."""
    from sidecar.counting.tokenizer_choice import Tokenizers

    settings = loaded.settings
    problems = Tokenizers((), settings.tokenize.estimator).problems
    # Check each entry separately. Otherwise, an entry could hide another whose globs overlap.
    for entry in settings.tokenizers:
        tokenizers = Tokenizers([msgspec.structs.replace(entry, models=("*",))])
        tokenizers.for_model(entry.models[0].replace("*", "x")).count("a")
        problems += tokenizers.problems
    found = sorted(loaded.problems, key=lambda problem: (str(problem.file), problem.line or 0))
    return [*map(str, found), *problems]


def list_values(loaded: Loaded, *, defaults: bool = True) -> list[dict[str, str]]:
    """Return the current settings and their sources, optionally including defaults."""
    settings = msgspec.to_builtins(loaded.settings, enc_hook=str, builtin_types=(Decimal,))
    return [
        {"key": key, "value": _value_as_json(settings, key), "from": str(origin)}
        for key, origin in sorted(loaded.origins.items())
        if f"{key}[0]" not in loaded.origins and (defaults or origin.source != "default")
    ]


def _is_in(name: str, key: str) -> bool:
    return name == key or name.startswith((f"{key}.", f"{key}["))


def _value_as_json(settings: Any, key: str) -> str:
    value = settings
    for part in re.findall(r"[^.\[\]]+", key):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list | tuple) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
    if isinstance(value, dict):
        value = {name: field for name, field in value.items() if field is not None}
    return json.dumps(value, default=_number)


def _number(value: Decimal) -> int | float:
    return int(value) if value == int(value) else float(value)
