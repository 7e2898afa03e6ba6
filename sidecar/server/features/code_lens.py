"""Code lenses with the counts of sections, the cost of prompt files, and MCP servers' tools."""

from __future__ import annotations

from lsprotocol import types

from sidecar.config.settings import Settings
from sidecar.counting.count_result import tokens_text
from sidecar.server.section_feature import SectionFeature


class CodeLens(SectionFeature):
    """Shows each section's count above its first line."""

    method, name = types.TEXT_DOCUMENT_CODE_LENS, "code_lens"
    announced = types.CodeLensOptions(resolve_provider=False)
    registered = types.CodeLensRegistrationOptions(resolve_provider=False)

    def is_enabled(self, settings: Settings) -> bool:
        return settings.code_lens

    def refresh(self) -> None:
        self._client.workspace_code_lens_refresh(None)

    async def respond(self, params: types.CodeLensParams) -> list[types.CodeLens]:
        services, uri = self._services, params.text_document.uri
        await services.configured.wait()
        if not self.is_enabled(services.roots.of_document(uri).settings):
            return []
        from sidecar.workspace.prompt_files import describe_mcp_servers, describe_prompt_file

        hints = await describe_mcp_servers(services, uri)
        info = await describe_prompt_file(services, uri)
        parts = await services.count_parts_of_document(uri)
        end = max((counted.part.end_line for counted in parts), default=0)
        lenses = [_code_lens(0, text) for text in (info.cost, *info.loading) if text]
        lenses += [_code_lens(hint.line, hint.text) for hint in hints]
        return lenses + [
            _code_lens(counted.part.start_line, tokens_text(counted.tokens, counted.method))
            for counted in parts
            # The cost's text already contains the count of the whole file.
            if not (info.cost and counted.part.start_line == 0 and counted.part.end_line == end)
        ]


def _code_lens(line: int, text: str) -> types.CodeLens:
    place = types.Position(line, 0)
    # A lens shows the title of its command. This command has no name, so it cannot be clicked.
    return types.CodeLens(range=types.Range(place, place), command=types.Command(text, ""))
