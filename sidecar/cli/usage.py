"""`token-sidecar usage`: how full the context of a workspace's kept session is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sidecar.context.results import ContextUsage
    from sidecar.workspace.state import State


@click.command()
@click.option(
    "--workspace",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="The workspace's root folder; the current one by default.",
)
@click.option("--session", help="Which session; the most recently updated one by default.")
@click.option("--watch", is_flag=True, help="Print again whenever it changes, until interrupted.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON.")
def usage(workspace: Path, session: str | None, watch: bool, as_json: bool) -> None:
    """Show how full the context is, of a session that its client asked to keep (`persist`).

    Exits 0, also when nothing is known: then there is no such session.
    """
    from sidecar.workspace.state import State

    root, state = workspace.resolve(), State()
    _show(_usage(root, state, session), as_json)
    if not watch:
        return
    from watchfiles import watch as changes

    folder = state.folder / "sessions"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for _ in changes(folder, raise_interrupt=False):
        _show(_usage(root, state, session), as_json)


def _usage(root: Path, state: State, session: str | None) -> ContextUsage:
    from sidecar.config.load import load
    from sidecar.context.occupancy import context_usage
    from sidecar.context.persist import restore
    from sidecar.context.results import ContextUsage
    from sidecar.context.window import Window, resolve_limit
    from sidecar.counting import catalogue
    from sidecar.counting.tokenizers import Tokenizers
    from sidecar.workspace.model_counter import ModelCounter

    kept = [one for one in state.sessions(root.as_uri()) if session in (None, one.id)]
    if not kept:
        return ContextUsage()
    saved = max(kept, key=lambda one: one.updated_at)
    settings = load(root).settings
    tokenizers = Tokenizers(settings.tokenizers, settings.tokenize.estimator)
    found = restore(saved, ModelCounter(saved.model, tokenizers.for_model(saved.model)))
    limit = resolve_limit(
        request=saved.limit,
        catalogue=catalogue.window_of(saved.model),
        setting=settings.context.limit,
    )
    reserve = settings.context.reserve if saved.reserve is None else saved.reserve
    return context_usage(found, Window(limit, reserve), warn_at=settings.context.warn_at)


def _show(found: ContextUsage, as_json: bool) -> None:
    import msgspec

    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
        return
    if found.tokens is None or found.session is None:
        click.echo("No session was kept here. A client keeps one with context/set, persist: true.")
        return
    mark = "~" if found.method in ("calibrated", "estimate") else ""
    click.echo(
        f"{found.session.id}: {mark}{found.tokens:,} of {found.usable:,} usable tokens"
        f" ({found.percent}%), {found.turns} turns, {found.model}, as of {found.session.updated_at}"
    )
