"""A reply goes into the ledger, with what was thought to be sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.context.occupancy import estimated_prompt
from sidecar.errors import SidecarError

if TYPE_CHECKING:
    from sidecar.context import params as p
    from sidecar.messages.reply import Reply
    from sidecar.workspace.chat_asking import Draft
    from sidecar.workspace.spending import Spending, Spent


def _estimate(draft: Draft) -> int | None:
    """What was thought to be sent, before the reply says what it was."""
    session = draft.session
    if session.is_empty or not session.turns:
        return None
    return estimated_prompt(session, draft.calibration).tokens


def record(
    spending: Spending, draft: Draft, reply: Reply, params: p.ResponseParams, named: str | None
) -> tuple[Spent | None, str | None]:
    """Bill a reply, once by the vendor's own id. The sums then, or why it could not be billed."""
    try:
        spent = spending.record_reply(
            draft.session.id,
            reply,
            model=named or reply.model or draft.session.model,
            provider=params.provider,
            category=params.category or "main",
            request_id=reply.request_id or params.request_id,
            raw=params.response,
            estimate=_estimate(draft),
        )
    except SidecarError as exc:
        return None, str(exc)
    return spent, None
