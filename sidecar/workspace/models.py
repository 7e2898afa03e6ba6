"""Models that a conversation could be switched to, and what weighs most in it. Blocking."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from sidecar.context.preflight import fitting
from sidecar.context.results import Alternative
from sidecar.context.sections import RestoredPart, ToolSet, heaviest_tools
from sidecar.context.thresholds import budget_message
from sidecar.models import catalogue, families
from sidecar.models.names import LOCAL_PROVIDERS, matches, parse

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.context.counter import Counter
    from sidecar.context.usage import ContextUsage
    from sidecar.endpoints.outcome import Capability

_NO_CHAT = re.compile(
    "embed|transcri|realtime|audio|tts|speech|whisper|image|dall-e|moderation|rerank|ocr"
    "|computer-use|instruct|davinci|babbage|search|deep-research|voxtral|veo|imagen|live"
)
"""Models that hold no conversation like this one, by what their names say."""

_RETIRED = re.compile(
    r"claude-(v?[12]\b|instant|3(?!-haiku))|claude-(opus|sonnet)-4(-[01]|\.1)?(-20\d{6})?$"
    r"|gpt-3\.5|gpt-4(-|$)|gpt-4\.5|gpt-4\.1-nano|o1|o3-mini|o4-mini|(ada|babbage|curie|davinci)$"
    r"|gpt-5(\.1)?-(chat-latest|codex)|gpt-5\.1-codex|gpt-5\.2-codex|gemini-(1|2\.0-flash|flash-1|pro$|pro-vision)"
)
"""What the makers' own APIs serve no longer: the price list keeps it for old calls.

By the makers' pages that docs/reference/sources.md names.
"""
_NO_NAME = re.compile(r"ft:|regional\.|.*(-|\.ft-?)$", re.IGNORECASE)
"""Of what the price list matches names by: breaks off where a fine-tune's id or a region stands."""
_VARIANT = re.compile(r":(free|extended|thinking|beta|online|nitro|floor|exacto)$")
"""OpenRouter's, which a maker's own API does not know."""
_REGION = re.compile(r"(global|us|us-gov|eu|apac|au|ca|jp|sa|me|uk)\.(?=\w+\.)")
"""Bedrock's, before the maker: what an account may call goes by it."""


def can_be_called(name: str, provider: str, model: str) -> bool:
    """Whether who calls `model` at a provider can put `name` in its place."""
    if _NO_NAME.match(name) or (provider != "openrouter" and _VARIANT.search(name)):
        return False
    if provider == families.maker_of(model) != families.maker_of(name):
        return False  # of a guest at a maker's: another API
    region, own = _REGION.match(name), _REGION.search(model)
    return region is None or (own is not None and own[0] == region[0])


def is_other_model(replied: str | None, asked: str, settings: Settings) -> bool:
    """Whether a reply names another model than was asked for.

    False for local servers and the user's endpoints, which give their models names of their own.
    """
    if not replied or parse(asked).provider in LOCAL_PROVIDERS:
        return False
    served = any(matches(asked, endpoint.models) for endpoint in settings.endpoints)
    return not served and catalogue.is_other(replied, asked)


class Alternatives(NamedTuple):
    """What a worker needs to know of a session to say what else could hold it."""

    model: str
    counter: Counter
    tools: ToolSet | RestoredPart | None
    capabilities: tuple[Capability, ...]

    def all(self) -> list[Alternative]:
        """Models of the same maker, and of the endpoints that serve this one."""
        from sidecar.counting.listing import search

        provider = catalogue.provider_of(self.model)
        found = [
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
        return found + [
            Alternative(model=row.model, context_window=row.limit)
            for row in self.capabilities
            if row.endpoint in serving and row.limit
        ]

    def offers(self, usage: ContextUsage) -> list[Alternative]:
        """The models whose window would hold the conversation, the smallest first."""
        than = usage.limit or 0
        return fitting(self.all(), usage.tokens or 0, self.model, usage.reserve or 0, than)

    def message(self, usage: ContextUsage) -> str:
        """What a warning says of a full context."""
        heaviest = heaviest_tools(self.tools, self.counter)
        return budget_message(usage, self.offers(usage), heaviest)
