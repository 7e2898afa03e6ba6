"""A reply with text and a tool call, in every vendor's format."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from tests.cases import FOLDER

ARGS = {"path": "a.py", "text": "x = 1"}
WHOLE = json.dumps(ARGS)
BROKEN = WHOLE[:-6]


class Form(msgspec.Struct):
    """A vendor's form of a reply or of its stream."""

    formats: list[str]
    """The formats that use it."""
    reply: Any
    """The reply, with placeholders such as `$stop`."""
    cut: str = ""
    """The reason to stop if the reply exceeds the output limit. Empty if there is no call."""
    whole: str = ""
    """The reason to stop after the call."""

    @property
    def has_text_arguments(self) -> bool:
        """Return whether a call's arguments are text, which may be cut, and not an object."""
        return "$object" not in str(self.reply)


FORMS = msgspec.json.decode((FOLDER / "vendor_replies.json").read_bytes(), type=dict[str, Form])


def vendor_reply(form: str, stop: str, arguments: str = WHOLE) -> Any:
    """Return a reply that contains the text `Writing.` and a call of the tool `write`.

    It has 11 prompt tokens and 7 output tokens.

    Args:
        form: The key in `FORMS`.
        stop: The reason to stop.
        arguments: The call's arguments, which are `ARGS` in forms that contain an object.
    """
    is_whole = stop == "completed"
    values = {
        "$arguments": arguments,
        "$first": arguments[:9],
        "$rest": arguments[9:],
        "$object": ARGS,
        "$stop": stop,
        "$status": "completed" if is_whole else "incomplete",
        "$event": "response.completed" if is_whole else "response.incomplete",
        "$details": None if is_whole else {"reason": stop},
    }

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: fill(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [fill(inner) for inner in value]
        return values.get(value, value) if isinstance(value, str) else value

    return fill(FORMS[form].reply)


BROKEN_OFF = [
    vendor_reply("openai-chat stream", "length", BROKEN)[:-2],
    vendor_reply("anthropic stream", "max_tokens", BROKEN)[:-3],
    vendor_reply("bedrock stream", "max_tokens", BROKEN)[:-3],
    vendor_reply("responses stream", "max_output_tokens", BROKEN)[:-1],
]
"""Streams that ended inside a call."""
