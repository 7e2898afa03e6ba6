"""How often a call used what vendors bill apart from tokens: searches, and other tools of theirs.

What counts as one is the vendor's own rule (docs/reference/sources.md names the pages):

* Anthropic: `server_tool_use.web_search_requests`.
* OpenAI: each `web_search_call` of a reply whose action is a search (pages that are opened are
  free), each `file_search_call`; a chat completion that cites pages searched once.
* Gemini: since 3 each query, before one for a prompt that was grounded, however many it asked.
* xAI: web and X searches, or the sources of Live Search. Perplexity: `num_search_queries`.

Others have no price in any list, and are counted so that nobody takes them for free: code that a
vendor runs, pictures that a tool makes, and grounding in Google Maps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sidecar.messages.bounds import count_in
from sidecar.messages.usage import JsonObject, holders_in, part, usages_in

_WEB, _FILES = "web_search_call", "file_search_call"
_OTHERS = ("code_interpreter_call", "image_generation_call")
_DONE = "response.output_item.done"


class Searches(NamedTuple):
    """Searches of one call."""

    web: int = 0
    files: int = 0
    others: int = 0
    """Uses of tools that no list prices."""


def searches(raw: object, *, by_query: bool = True) -> Searches:
    """The searches that a usage, or the reply or stream that carries it, shows.

    `by_query`: whether each query that Gemini asked is one, or all of a prompt together.
    """
    holders, items = list(holders_in(raw)), _streamed(raw)
    web = [_reported(usage) for usage in usages_in(raw)]
    for holder in holders:
        web += [_in_output(holder, _WEB), _cited(holder), _grounded(holder, by_query)]
    files = [_in_output(holder, _FILES) for holder in holders]
    others = [_reported_others(usage) for usage in usages_in(raw)]
    others += [sum(_in_output(holder, kind) for kind in _OTHERS) for holder in holders]
    others += [_mapped(holder) for holder in holders]
    return Searches(
        web=max([*web, items.count(_WEB)]),
        files=max([*files, items.count(_FILES)]),
        others=max([*others, sum(map(items.count, _OTHERS))]),
    )


def _reported(usage: JsonObject) -> int:
    tools = part(usage, "server_side_tool_usage_details")
    return (
        count_in(part(usage, "server_tool_use").get("web_search_requests"))
        or count_in(tools.get("web_search_calls")) + count_in(tools.get("x_search_calls"))
        or count_in(usage.get("num_sources_used"))
        or count_in(usage.get("num_search_queries"))
    )


def _reported_others(usage: JsonObject) -> int:
    tools = part(usage, "server_side_tool_usage_details")
    return (
        count_in(part(usage, "server_tool_use").get("code_execution_requests"))
        or count_in(tools.get("code_interpreter_calls"))
        or count_in(tools.get("code_execution_calls"))
    )


def _in_output(holder: JsonObject, kind: str) -> int:
    return sum(_is_search(item, kind) for item in _mappings(holder.get("output")))


def _streamed(raw: object) -> list[str]:
    """The searches among the finished items of a stream of OpenAI's Responses."""
    events = raw if isinstance(raw, list | tuple) else ()
    done = [event for event in _mappings(events) if event.get("type") == _DONE]
    items = [part(event, "item") for event in done]
    kinds = (_WEB, _FILES, *_OTHERS)
    return [kind for item in items for kind in kinds if _is_search(item, kind)]


def _is_search(item: JsonObject, kind: str) -> bool:
    if item.get("type") != kind:
        return False
    return bool(part(item, "action").get("type", "search") == "search")


def _cited(holder: JsonObject) -> int:
    """1 where a chat completion cites pages of the web."""
    for choice in _mappings(holder.get("choices")):
        for message in (part(choice, "message"), part(choice, "delta")):
            kinds = [one.get("type") for one in _mappings(message.get("annotations"))]
            if "url_citation" in kinds:
                return 1
    return 0


def _grounded(holder: JsonObject, by_query: bool) -> int:
    found = 0
    for metadata in _groundings(holder):
        queries = metadata.get("webSearchQueries", metadata.get("web_search_queries"))
        asked = sum(bool(query) for query in queries) if isinstance(queries, list) else 0
        if _sources(metadata) != {"maps"}:  # whose queries stand there too
            found = max(found, asked if by_query else min(asked, 1))
    return found


def _mapped(holder: JsonObject) -> int:
    """1 where an answer is grounded in Google Maps."""
    return int(any("maps" in _sources(metadata) for metadata in _groundings(holder)))


def _groundings(holder: JsonObject) -> Iterator[JsonObject]:
    for candidate in _mappings(holder.get("candidates")):
        yield part(candidate, "groundingMetadata") or part(candidate, "grounding_metadata")


def _sources(metadata: JsonObject) -> set[str]:
    """`web`, `maps` and the like, of the pieces that an answer is grounded in."""
    chunks = metadata.get("groundingChunks", metadata.get("grounding_chunks"))
    return {key for chunk in _mappings(chunks) for key in ("web", "maps") if part(chunk, key)}


def _mappings(value: Any) -> Iterator[JsonObject]:
    for item in value if isinstance(value, list | tuple) else ():
        if isinstance(item, Mapping):
            yield item
