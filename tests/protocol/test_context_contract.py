"""Tests that a reply is billed once, and that reading a session does not change `updatedAt`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.protocol.client import Client

REPLY: dict[str, Any] = {
    "id": "chatcmpl-1",
    "model": "gpt-4o",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Yes."}}
    ],
    "usage": {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14},
}


async def test_a_reply_is_billed_once_by_its_own_id(talker: Client) -> None:
    """The ID in the reply identifies a call. If the reply has no ID, the client's ID is used."""
    unnamed = {key: value for key, value in REPLY.items() if key != "id"}
    calls = []
    for response, named in ((REPLY, None), (REPLY, "a"), (REPLY, "b"), (unnamed, "c")):
        params = {"session": "s", "response": response, "requestId": named}
        answer = await talker.request("context/response", params)
        assert answer["requestId"] == response.get("id")
        calls.append((await talker.request("cost/detail", {}))["totals"]["calls"])
    assert calls == [1, 1, 1, 2]


async def test_assembling_does_not_change_the_time_of_a_session(talker: Client) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    await talker.request("context/assemble", {"assistant": "Be brief.", "user": "Go."})
    usage = await talker.request("context/usage", {})
    assert before <= datetime.fromisoformat(usage["session"]["updatedAt"]) <= datetime.now(UTC)
    same = await talker.request("context/usage", {})
    assert same["session"] == usage["session"], "the time changes only with the session"
