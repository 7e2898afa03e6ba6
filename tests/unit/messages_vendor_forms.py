"""A reply with text and a tool call, in every vendor's format."""

from __future__ import annotations

import json
from typing import Any

ARGS = {"path": "a.py", "text": "x = 1"}
WHOLE = json.dumps(ARGS)
BROKEN = WHOLE[:-6]


def openai(arguments: str, finish: str, **usage: int) -> dict[str, Any]:
    call = {"id": "call_1", "type": "function"}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "gpt-4.1",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Writing.",
                    "tool_calls": [{**call, "function": {"name": "write", "arguments": arguments}}],
                },
                "finish_reason": finish,
            }
        ],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, **usage},
    }


def openai_chunks(*pieces: str, finish: str | None) -> list[dict[str, Any]]:
    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]}

    def call(**fields: Any) -> dict[str, Any]:
        return {"tool_calls": [{"index": 0, **fields}]}

    return [
        chunk({"role": "assistant", "content": "Wri"}),
        chunk({"content": "ting."}),
        chunk(call(id="call_1", type="function", function={"name": "write", "arguments": ""})),
        *(chunk(call(function={"arguments": piece})) for piece in pieces),
        *([chunk({}, finish)] if finish else []),
        {"id": "chatcmpl-1", "choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 7}},
    ]


def responses(arguments: str, reason: str | None) -> dict[str, Any]:
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "write"}
    return {
        "id": "resp_1",
        "object": "response",
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "error": None,
        "model": "gpt-5",
        "output": [
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "message", "content": [{"type": "output_text", "text": "Writing."}]},
            {**call, "arguments": arguments, "status": "incomplete" if reason else "completed"},
        ],
        "usage": {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18},
    }


def responses_events(reason: str | None) -> list[dict[str, Any]]:
    item = {"type": "function_call", "call_id": "call_1", "name": "write", "arguments": ""}
    delta = "response.function_call_arguments.delta"
    end = responses(BROKEN, reason)
    return [
        {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}},
        {"type": "response.output_text.delta", "output_index": 1, "delta": "Writing."},
        {"type": "response.output_item.added", "output_index": 2, "item": item},
        {"type": delta, "output_index": 2, "delta": BROKEN},
        *([{"type": "response.incomplete", "response": end}] if reason else []),
    ]


def anthropic(block_input: dict[str, Any], stop: str) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-haiku-4-5",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "Writing."},
            {"type": "tool_use", "id": "toolu_1", "name": "write", "input": block_input},
        ],
        "stop_reason": stop,
        "usage": {"input_tokens": 11, "output_tokens": 7},
    }


def anthropic_events(*pieces: str, stop: str | None) -> list[dict[str, Any]]:
    message = {"id": "msg_1", "type": "message", "model": "claude-haiku-4-5", "content": []}
    usage = {"input_tokens": 11, "output_tokens": 1}
    tool = {"type": "tool_use", "id": "toolu_1", "name": "write", "input": {}}
    start, delta = {"type": "content_block_start"}, {"type": "content_block_delta"}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "usage": usage}},
        {**start, "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        {**delta, "index": 0, "delta": {"type": "text_delta", "text": "Writing."}},
        {"type": "content_block_stop", "index": 0},
        {**start, "index": 1, "content_block": tool},
    ]
    for piece in pieces:
        json_delta = {"type": "input_json_delta", "partial_json": piece}
        events.append({**delta, "index": 1, "delta": json_delta})
    if stop is None:
        return events
    end = {"delta": {"stop_reason": stop}, "usage": {"output_tokens": 7}}
    block_stop = {"type": "content_block_stop", "index": 1}
    return [*events, block_stop, {"type": "message_delta", **end}, {"type": "message_stop"}]


def gemini(finish: str | None) -> dict[str, Any]:
    parts = [
        {"text": "hm", "thought": True},
        {"text": "Writing."},
        {"functionCall": {"name": "write", "args": ARGS}},
    ]
    candidate = {"content": {"parts": parts, "role": "model"}, "index": 0}
    return {
        "candidates": [{**candidate, "finishReason": finish}],
        "usageMetadata": {"promptTokenCount": 11, "candidatesTokenCount": 7},
        "modelVersion": "gemini-2.5-pro",
        "responseId": "r1",
    }


def bedrock(stop: str) -> dict[str, Any]:
    use = {"toolUseId": "toolu_1", "name": "write", "input": ARGS}
    return {
        "ResponseMetadata": {"RequestId": "req-1"},
        "output": {
            "message": {"role": "assistant", "content": [{"text": "Writing."}, {"toolUse": use}]}
        },
        "stopReason": stop,
        "usage": {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18},
    }


def bedrock_events(piece: str, stop: str | None) -> list[dict[str, Any]]:
    start = {"toolUse": {"toolUseId": "toolu_1", "name": "write"}}
    delta = "contentBlockDelta"
    return [
        {"messageStart": {"role": "assistant"}},
        {delta: {"delta": {"text": "Writing."}, "contentBlockIndex": 0}},
        {"contentBlockStop": {"contentBlockIndex": 0}},
        {"contentBlockStart": {"start": start, "contentBlockIndex": 1}},
        {delta: {"delta": {"toolUse": {"input": piece}}, "contentBlockIndex": 1}},
        *([{"contentBlockStop": {"contentBlockIndex": 1}}] if stop else []),
        *([{"messageStop": {"stopReason": stop}}] if stop else []),
        {"metadata": {"usage": {"inputTokens": 11, "outputTokens": 7}, "metrics": {}}},
    ]


def ollama(reason: str) -> dict[str, Any]:
    call = {"function": {"name": "write", "arguments": ARGS}}
    return {
        "model": "llama3.2",
        "created_at": "2026-01-01T00:00:00Z",
        "message": {"role": "assistant", "content": "Writing.", "tool_calls": [call]},
        "done": True,
        "done_reason": reason,
        "prompt_eval_count": 11,
        "eval_count": 7,
    }


def ollama_objects(reason: str) -> list[dict[str, Any]]:
    last = ollama(reason)
    first = {**last, "done": False, "message": {"role": "assistant", "content": "Writing."}}
    del first["done_reason"], first["prompt_eval_count"], first["eval_count"]
    return [first, {**last, "message": {**last["message"], "content": ""}}]


def lmstudio(reason: str) -> dict[str, Any]:
    stats = {"stopReason": reason, "promptTokensCount": 11, "predictedTokensCount": 7}
    return {"content": "Writing.", "stats": stats, "modelInfo": {"identifier": "qwen3-4b"}}


def lmstudio_packets(piece: str, reason: str) -> list[dict[str, Any]]:
    prefix = "toolCallGeneration"
    return [
        {"type": "fragment", "fragment": {"content": "hm", "reasoningType": "reasoning"}},
        {"type": "fragment", "fragment": {"content": "Writing.", "reasoningType": "none"}},
        {"type": f"{prefix}Start", "toolCallId": "call_1"},
        {"type": f"{prefix}NameReceived", "name": "write"},
        {"type": f"{prefix}ArgumentFragmentGenerated", "content": piece},
        {"type": "success", "stats": lmstudio(reason)["stats"]},
    ]


def cohere(arguments: str, finish: str) -> dict[str, Any]:
    call = {
        "id": "write_1",
        "type": "function",
        "function": {"name": "write", "arguments": arguments},
    }
    return {
        "id": "c1",
        "finish_reason": finish,
        "message": {
            "role": "assistant",
            "content": [{"type": "text", "text": "Writing."}],
            "tool_calls": [call],
        },
        "usage": {"tokens": {"input_tokens": 11.0, "output_tokens": 7.0}},
    }


def cohere_events(piece: str, finish: str) -> list[dict[str, Any]]:
    function = {"name": "write", "arguments": ""}
    call = {"id": "write_1", "type": "function", "function": function}
    usage = cohere("", "")["usage"]
    return [
        {"type": "message-start", "id": "c1", "delta": {"message": {"role": "assistant"}}},
        {
            "type": "content-delta",
            "index": 0,
            "delta": {"message": {"content": {"text": "Writing."}}},
        },
        {"type": "tool-call-start", "index": 0, "delta": {"message": {"tool_calls": call}}},
        {
            "type": "tool-call-delta",
            "index": 0,
            "delta": {"message": {"tool_calls": {"function": {"arguments": piece}}}},
        },
        {"type": "message-end", "delta": {"finish_reason": finish, "usage": usage}},
    ]
