"""Section token counts: inlay hints, code lenses, symbols, hovers and commands.

Inlay hints, code lenses and symbols are off by default. Editors ask registered providers after
almost every keystroke, so a provider is only registered while a setting enables it. This requires a
client with `dynamicRegistration`. For other clients, all providers are announced in `initialize`,
and they return no hints or lenses while disabled.

Commands return their result for the project's own editor plugins, and also show it as a message in
other editors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from lsprotocol import types

from sidecar.counting.count import tokens_text
from sidecar.errors import BadParamsError
from sidecar.server.features.cost import describe_prompt_file_cost
from sidecar.server.protocol import find_line_span, from_position
from sidecar.text.positions import Position
from sidecar.text.printable import markdown, message, printable, shorten
from sidecar.text.tables import align_columns
from sidecar.workspace.budgets import find_lowest_budget, model_of
from sidecar.workspace.documents import Snapshot
from sidecar.workspace.status import document_status
from sidecar.workspace.views import format_comparison_as_markdown

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.server.server import SidecarServer
    from sidecar.text.document import TextDocument
    from sidecar.workspace.counts import CountedPart
    from sidecar.workspace.workspace import Workspace

LABEL = "Tokens"
"""Distinguishes these symbols from other language servers' symbols."""

MAX_SYMBOLS = 1_000
"""Maximum number of symbols. Encoding more would block the event loop."""

_MAX_HINT_TITLE = 24
"""Maximum length of a title in an inlay hint, in characters."""

_LINE_END = 2**31 - 1  # LSP clamps positions to the end of the line


def register(server: SidecarServer) -> None:
    _register_providers(server)
    _register_hover(server)
    _register_commands(server)


def _register_providers(server: SidecarServer) -> None:
    services = server.services

    @server.feature(types.TEXT_DOCUMENT_INLAY_HINT)
    async def inlay_hints(params: types.InlayHintParams) -> list[types.InlayHint]:
        await services.configured.wait()
        document = services.documents.get_open(params.text_document.uri)
        if not services.roots.of_document(document.uri).settings.inlay_hints:
            return []
        parts = await services.count_parts_of_document(document.uri)
        first, last = find_line_span(params.range)
        visible = [part for part in parts if first <= _last_line(document, part) <= last]
        return list(_hints(document, visible))

    @server.feature(types.TEXT_DOCUMENT_CODE_LENS, types.CodeLensOptions(resolve_provider=False))
    async def code_lens(params: types.CodeLensParams) -> list[types.CodeLens]:
        await services.configured.wait()
        uri = params.text_document.uri
        if not services.roots.of_document(uri).settings.code_lens:
            return []
        cost = await describe_prompt_file_cost(server, uri)
        parts = await services.count_parts_of_document(uri)
        end = max((counted.part.end_line for counted in parts), default=0)
        return [_code_lens(0, cost)] * bool(cost) + [
            _code_lens(counted.part.start_line, tokens_text(counted.tokens, counted.method))
            for counted in parts
            # The cost's text already contains the count of the whole file.
            if not (cost and counted.part.start_line == 0 and counted.part.end_line == end)
        ]

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL, types.DocumentSymbolOptions(label=LABEL))
    async def symbols(params: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
        uri = params.text_document.uri
        parts = await services.count_parts_of_document(uri)
        document, workspace = services.documents.get_open(uri), services.roots.of_document(uri)
        if not server.providers.is_enabled(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL, workspace):
            return []
        return _symbol_tree(document, parts[:MAX_SYMBOLS])


def _last_line(document: TextDocument, counted: CountedPart) -> int:
    for line in range(counted.part.end_line - 1, counted.part.start_line, -1):
        if document.line(line).strip():
            return line
    return counted.part.start_line


def _hints(document: TextDocument, parts: Iterable[CountedPart]) -> Iterable[types.InlayHint]:
    by_line: dict[int, list[CountedPart]] = {}
    for part in parts:
        by_line.setdefault(_last_line(document, part), []).insert(0, part)
    for line, ending in by_line.items():
        offset = document.offset_at(Position(line, _LINE_END))
        counts = [tokens_text(part.tokens, part.method) for part in ending]
        titles = [printable(part.part.title) for part in ending]
        names = [shorten(title, _MAX_HINT_TITLE) for title in titles]
        yield types.InlayHint(
            position=from_position(document.position_at(offset)),
            label=counts[0] if len(counts) == 1 else " · ".join(_with_titles(names, counts)),
            tooltip="\n".join(_with_titles(titles, counts)),
            padding_left=True,
        )


def _with_titles(titles: Iterable[str], counts: Iterable[str]) -> Iterable[str]:
    return map(": ".join, zip(titles, counts, strict=True))


def _code_lens(line: int, text: str) -> types.CodeLens:
    place = types.Position(line, 0)
    # A lens shows the title of its command. This command has no name, so it cannot be clicked.
    return types.CodeLens(range=types.Range(place, place), command=types.Command(text, ""))


def _symbol_tree(
    document: TextDocument, parts: Sequence[CountedPart]
) -> list[types.DocumentSymbol]:
    roots: list[types.DocumentSymbol] = []
    ancestors: list[tuple[int, types.DocumentSymbol]] = []
    for counted in parts:
        part = counted.part
        while ancestors and part.start_line >= ancestors[-1][0]:
            ancestors.pop()
        symbol = _symbol(document, counted)
        siblings = roots
        if ancestors:
            siblings = cast("list[types.DocumentSymbol]", ancestors[-1][1].children)
        siblings.append(symbol)
        ancestors.append((part.end_line, symbol))
    return roots


def _symbol(document: TextDocument, counted: CountedPart) -> types.DocumentSymbol:
    part = counted.part
    start = types.Position(part.start_line, 0)
    end = from_position(document.position_at(part.end))
    heading = document.position_at(document.offset_at(Position(part.start_line, _LINE_END)))
    return types.DocumentSymbol(
        name=printable(part.title) or f"line {part.start_line + 1}",
        kind=types.SymbolKind.String,
        range=types.Range(start, end),
        selection_range=types.Range(start, from_position(heading)),
        detail=tokens_text(counted.tokens, counted.method),
        children=[],
    )


@dataclass(frozen=True, eq=False)
class _Provider:
    """A provider that can be enabled in the settings.

    `name` is the name of the field in the client's capabilities. With the suffix `_provider`,
    it is also the name of the field in the server's capabilities.
    """

    method: str
    name: str
    options: object
    is_enabled: Callable[[Settings], bool]
    refresh: Callable[[SidecarServer], object]
    """Asks the client to request results again, if the client supports this."""


_PROVIDERS = (
    _Provider(
        types.TEXT_DOCUMENT_INLAY_HINT,
        "inlay_hint",
        types.InlayHintRegistrationOptions(),
        lambda settings: settings.inlay_hints,
        lambda server: server.workspace_inlay_hint_refresh(None),
    ),
    _Provider(
        types.TEXT_DOCUMENT_CODE_LENS,
        "code_lens",
        types.CodeLensRegistrationOptions(resolve_provider=False),
        lambda settings: settings.code_lens,
        lambda server: server.workspace_code_lens_refresh(None),
    ),
    # A second outline is only useful to users who count sections.
    _Provider(
        types.TEXT_DOCUMENT_DOCUMENT_SYMBOL,
        "document_symbol",
        types.DocumentSymbolRegistrationOptions(label=LABEL),
        lambda settings: settings.inlay_hints or settings.code_lens,
        lambda _server: None,  # LSP has no refresh request for symbols
    ),
)


class ProviderRegistry:
    """Registers the providers that are enabled in the settings, and unregisters all others."""

    def __init__(self, server: SidecarServer) -> None:
        self._server = server
        self._dynamic: set[_Provider] = set()
        """Providers that the client can register dynamically."""
        self._enabled: frozenset[_Provider] = frozenset()

    def defer_registration(
        self, announced: types.ServerCapabilities, client: types.ClientCapabilities
    ) -> None:
        """Remove from `announced` the providers that can be registered later."""
        for provider in _PROVIDERS:
            capability = getattr(client.text_document, provider.name, None)
            if capability is not None and capability.dynamic_registration:
                self._dynamic.add(provider)
                setattr(announced, f"{provider.name}_provider", None)

    def on_settings_changed(self) -> None:
        """Update the registered providers. Must be called after the `initialized` notification."""
        before, roots = self._enabled, self._server.services.roots
        self._enabled = frozenset(
            provider
            for provider in _PROVIDERS
            if any(provider.is_enabled(root.settings) for root in roots)
        )
        self._unregister(before - self._enabled)
        self._register(self._enabled - before)
        # Refresh new providers, too. Otherwise Neovim requests no results until the next edit.
        self._refresh(self._enabled | (before - self._dynamic))

    def is_enabled(self, method: str, workspace: Workspace) -> bool:
        """Return whether a provider is enabled in a workspace."""
        return not any(
            provider.method == method and not provider.is_enabled(workspace.settings)
            for provider in self._dynamic
        )

    def refresh(self) -> None:
        """Ask the client to request counts again. Call this if counts change without an edit."""
        self._refresh(self._enabled)

    def _register(self, providers: frozenset[_Provider]) -> None:
        registrations = [
            types.Registration(provider.method, provider.method, provider.options)
            for provider in _PROVIDERS
            if provider in providers & self._dynamic
        ]
        if registrations:
            self._server.client_register_capability(types.RegistrationParams(registrations))

    def _unregister(self, providers: frozenset[_Provider]) -> None:
        entries = [
            types.Unregistration(provider.method, provider.method)
            for provider in _PROVIDERS
            if provider in providers & self._dynamic
        ]
        if entries:
            self._server.client_unregister_capability(types.UnregistrationParams(entries))

    def _refresh(self, providers: frozenset[_Provider]) -> None:
        workspace = self._server.client_capabilities.workspace
        for provider in providers:
            capability = getattr(workspace, provider.name, None)
            if capability is not None and capability.refresh_support:
                provider.refresh(self._server)


COMPARED = ("gpt-5", "gpt-4", "claude-sonnet-4-5", "gemini-2.5-pro")
"""Models to compare with the document's model, one per tokenizer family."""


def _register_hover(server: SidecarServer) -> None:
    @server.feature(types.TEXT_DOCUMENT_HOVER)
    async def hover(params: types.HoverParams) -> types.Hover | None:
        uri, line = params.text_document.uri, params.position.line
        text = await _hover_section(server, uri, line)
        if line == 0:
            text = "\n\n".join(part for part in (await _hover_document(server, uri), text) if part)
        if not text:
            return None
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text))


async def _hover_document(server: SidecarServer, uri: str) -> str:
    services = server.services
    await services.configured.wait()
    snapshot, workspace = services.documents.snapshot(uri), services.roots.of_document(uri)
    count = await services.counts.count(snapshot, model_of(uri, workspace), workspace)
    tooltip = document_status(
        count, find_lowest_budget(snapshot, workspace), workspace.loaded
    ).tooltip
    cost = await describe_prompt_file_cost(server, uri)
    return f"{tooltip}\n\nSent with every request: {markdown(cost)}" if cost else tooltip


async def _hover_section(server: SidecarServer, uri: str, line: int) -> str:
    services = server.services
    parts = (counted.part for counted in await services.count_parts_of_document(uri))
    part = next((part for part in parts if part.start_line == line), None)
    if part is None:
        return ""
    document, workspace = services.documents.snapshot(uri), services.roots.of_document(uri)
    section = Snapshot(text=document.text[part.start : part.end])
    models = dict.fromkeys((model_of(uri, workspace), *COMPARED))
    counts = [await services.counts.count(section, model, workspace) for model in models]
    return format_comparison_as_markdown(part.title, counts)


PREFIX = "tokenSidecar.server."
HEAVIEST_SHOWN = 8


def _register_commands(server: SidecarServer) -> None:
    @server.command(f"{PREFIX}heaviestSections")
    async def heaviest(*arguments: Any) -> list[dict[str, Any]]:
        parts = await server.services.count_parts_of_document(_uri_of(arguments))
        rows: list[dict[str, Any]] = [
            {"title": part.part.title, "line": part.part.start_line, "tokens": part.tokens}
            for part in sorted(parts, key=lambda part: -part.tokens)[:HEAVIEST_SHOWN]
        ]
        lines = align_columns(
            [
                (f"{row['tokens']:,}", f"{printable(row['title'])} (line {row['line'] + 1})")
                for row in rows
            ],
            left=0,
        )
        title = "Heaviest sections:" if rows else "This document has no sections."
        _show_message(server, "\n".join([title, *lines]))
        return rows

    @server.command(f"{PREFIX}compareModels")
    async def compare(*arguments: Any) -> str:
        services, uri = server.services, _uri_of(arguments)
        await services.configured.wait()
        snapshot, workspace = services.documents.snapshot(uri), services.roots.of_document(uri)
        models = dict.fromkeys((model_of(uri, workspace), *map(str, arguments[1:])))
        counts = [await services.counts.count(snapshot, model, workspace) for model in models]
        rows = [f"{printable(row.model)} {tokens_text(row.tokens, row.method)}" for row in counts]
        _show_message(server, ", ".join(rows))
        return format_comparison_as_markdown("This document", counts)


def _uri_of(arguments: tuple[Any, ...]) -> str:
    if not arguments or not isinstance(arguments[0], str):
        raise BadParamsError("the first argument must be the document's URI")
    return arguments[0]


def _show_message(server: SidecarServer, text: str) -> None:
    server.window_show_message(types.ShowMessageParams(types.MessageType.Info, message(text)))
