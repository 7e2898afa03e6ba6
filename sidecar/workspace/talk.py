"""What a workspace keeps of its conversations."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sidecar.context.store import Conversations
from sidecar.workspace.followed import FollowedDocument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.context.results import ContextUsage
    from sidecar.counting.calibration import ConversationCalibration
    from sidecar.workspace.status import Severity


@dataclass(eq=False)
class Talk:
    """All conversations of one workspace, and what its status shows of the current one."""

    conversations: Conversations = field(default_factory=Conversations)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    models: dict[str, str] = field(default_factory=dict)
    """Models that a client named, by session; the others follow the settings."""
    calibrations: dict[str, ConversationCalibration] = field(default_factory=dict)
    shown: ContextUsage | None = None
    severity: Severity = "ok"
    restored: bool = False
    kept: dict[str, int] = field(default_factory=dict)
    """Layouts of the sessions that were written, by id."""
    refused_limits: dict[str, int] = field(default_factory=dict)
    """Windows that servers named when they refused a prompt, by model."""
    remembered: str | None = None
    """What the person wants done about a full context without being asked again."""

    @property
    def current_model(self) -> str | None:
        """The model of the current session, where a client named one."""
        current = self.conversations.current()
        return None if current is None else self.models.get(current.session.id)

    @property
    def current_limit(self) -> int | None:
        """The window that the client named for the current session."""
        current = self.conversations.current()
        return None if current is None else current.session.limit

    def followed(self) -> Iterator[FollowedDocument]:
        """The documents that sections of these conversations follow."""
        for one in self.conversations:
            for section in one.session.sections:
                if isinstance(section.source, FollowedDocument):
                    yield section.source
