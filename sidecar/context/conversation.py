"""One conversation, with all that is worked out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.context.assemble import Assembler
from sidecar.context.plans import Plans

if TYPE_CHECKING:
    from sidecar.context.session import Session


class Conversation:
    """A session with the plans and the assembled parts that belong to it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.plans = Plans(session)
        self.assembler = Assembler()

    def copy(self) -> Conversation:
        """The same conversation, to be worked on apart from this one."""
        made = Conversation(self.session.copy())
        made.plans, made.assembler = self.plans.copy(made.session), self.assembler.copy()
        return made

    def reset(self) -> None:
        """Forget all but the model, the assembling caches too."""
        self.session.reset()
        self.plans = Plans(self.session)
        self.assembler.clear()
