"""Finds models that could hold a conversation, and detects replies by another model. Blocking."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from sidecar.context.occupancy import budget_message
from sidecar.context.preflight import fitting as fitting_models
from sidecar.context.protocol import Alternative
from sidecar.context.sections import RestoredPart, ToolSet, heaviest_tools
from sidecar.models import catalogue, families
from sidecar.models.names import LOCAL_PROVIDERS, matches, parse

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.context.counter import Counter
    from sidecar.context.protocol import ContextUsage
    from sidecar.endpoints.outcome import Capability

_NO_CHAT = re.compile(
    "embed|transcri|realtime|audio|tts|speech|whisper|image|dall-e|moderation|rerank|ocr"
    "|computer-use|instruct|davinci|babbage|search|deep-research|voxtral|veo|imagen|live"
)
"""Names of models that are not made for conversations."""

_RETIRED = re.compile(
    r"claude-(v?[12]\b|instant|3(?!-haiku))|claude-(opus|sonnet)-4(-[01]|\.1)?(-20\d{6})?$"
    r"|gpt-3\.5|gpt-4(-|$)|gpt-4\.5|gpt-4\.1-nano|o1|o3-mini|o4-mini|(ada|babbage|curie|davinci)$"
    r"|gpt-5(\.1)?-(chat-latest|codex)|gpt-5\.1-codex|gpt-5\.2-codex|gemini-(1|2\.0-flash|flash-1|pro$|pro-vision)"
)
"""Models that their vendors no longer serve, by the pages in docs/reference/sources.md.

The price list still contains them, for old calls.
"""
_NO_NAME = re.compile(r"ft:|regional\.|.*(-|\.ft-?)$", re.IGNORECASE)
"""Prefixes in the price list, which a fine-tune's id or a region completes."""
_VARIANT = re.compile(r":(free|extended|thinking|beta|online|nitro|floor|exacto)$")
"""Suffixes of OpenRouter's model variants, which the vendors' own APIs do not have."""
_REGION = re.compile(r"(global|us|us-gov|eu|apac|au|ca|jp|sa|me|uk)\.(?=\w+\.)")
"""Bedrock's region prefix, which limits the models that an account can call."""


def can_be_called(name: str, provider: str, model: str) -> bool:
    """Return whether a client that calls `model` at a provider can call `name` there too."""
    if _NO_NAME.match(name) or (provider != "openrouter" and _VARIANT.search(name)):
        return False
    if provider == families.maker_of(model) != families.maker_of(name):
        return False  # it needs another API
    region, own = _REGION.match(name), _REGION.search(model)
    return region is None or (own is not None and own[0] == region[0])


def is_other_model(replied: str | None, asked: str, settings: Settings) -> bool:
    """Return whether a reply comes from another model than the client asked for.

    Always false for local servers and the user's endpoints, which name models in their own way.
    """
    if not replied or parse(asked).provider in LOCAL_PROVIDERS:
        return False
    served = any(matches(asked, endpoint.models) for endpoint in settings.endpoints)
    return not served and catalogue.is_other(replied, asked)


class Alternatives(NamedTuple):
    """Finds models that could hold a conversation. Frozen, so that workers can use it."""

    model: str
    counter: Counter
    tools: ToolSet | RestoredPart | None
    capabilities: tuple[Capability, ...]

    def all(self) -> list[Alternative]:
        """Return the other models of the same vendor, and those of endpoints that serve the
        model."""
        from sidecar.counting.model_list import search

        provider = catalogue.provider_of(self.model)
        models = [
            Alternative(model=info.id, context_window=info.context_window)
            for info in (search() if provider else ())
            if provider
            and info.provider == provider
            and info.context_window
            and not _NO_CHAT.search(info.id)
            and not _RETIRED.match(parse(info.id).bare)
            and can_be_called(info.id, provider, self.model)
        ]
        serving = {row.endpoint for row in self.capabilities if row.model == self.model}
        return models + [
            Alternative(model=row.model, context_window=row.limit)
            for row in self.capabilities
            if row.endpoint in serving and row.limit
        ]

    def fitting(self, usage: ContextUsage) -> list[Alternative]:
        """Return the models whose window would hold the conversation, smallest first."""
        return fitting_models(
            self.all(), usage.tokens or 0, self.model, usage.reserve or 0, usage.limit or 0
        )

    def message(self, usage: ContextUsage) -> str:
        heaviest = heaviest_tools(self.tools, self.counter)
        return budget_message(usage, self.fitting(usage), heaviest)
