"""Tests that `find_footprint` returns what real agents send in their first request."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sidecar.agents.folders import Places
from sidecar.project.footprint import Footprint, Part, find_footprint
from sidecar.project.loading_rules import Kind
from tests.e2e.agents import canaries
from tests.e2e.agents.adapters import Agent
from tests.e2e.agents.scene import Stage
from tests.fake_vendor import Reply, VendorCall
from tests.truth import truth

GREET = "Greet me in one line."
RUN_SECONDS = 100
BAND = 2
"""Maximum difference between the tokens of a part and of its text in the request, in percent."""
LAYOUTS: dict[str, Callable[[], canaries.Layout]] = {
    "everything": canaries.everything,
    "details": canaries.details,
    "crowded": canaries.crowded,
    "settings": canaries.settings,
    "imports": canaries.many_imports,
    "links": canaries.links,
    "outside": canaries.outside,
    "approved": partial(canaries.outside, is_approved=True),
    "sample-1": partial(canaries.sample, 1),
    "sample-2": partial(canaries.sample, 2),
    "sample-3": partial(canaries.sample, 3),
    "no-repository": partial(canaries.sample, 4, is_repository=False),
}
RARE = {"crowded", "links", "approved", "sample-2", "sample-3"}
"""Layouts that run weekly, and when agents are chosen. `tests/unit/test_footprint*.py` has their
rules, too.
"""


def marks(layout: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if layout in RARE and not os.environ.get("AGENTS") else []


@pytest.mark.parametrize("layout", [pytest.param(one, marks=marks(one)) for one in LAYOUTS])
def test_footprint(stage: Stage, layout: str) -> None:
    """A canary is in the first request if and only if the footprint says that it is sent."""
    written = LAYOUTS[layout]()
    if written.is_repository:
        stage.init_repository()
    places = canaries.write(written, stage.home)
    start = stage.home / written.start
    call = first_call(stage, start)
    texts = [*texts_of(call.request.body)]
    agent = stage.agent
    footprint = find_footprint(agent.name, start, Places(stage.home), context_window=agent.window)
    wrong = [*wrong_places(footprint, texts, places, stage.home)]
    stage.score.places += len(places)
    stage.score.right_places += len(places) - len(wrong)
    wrong_parts = [*wrong_texts(footprint, texts)]
    compared = sum(_found_in(texts, part) != "" for part in footprint.parts)
    stage.score.parts += compared
    stage.score.right_parts += compared - len(wrong_parts)
    differences = [*wrong, *wrong_parts]
    differences += wrong_order(footprint, call.request.body, agent.unsorted)
    below = "footprint: sum below the root" in agent.limits and written.start != canaries.ROOT
    if "footprint: sum" not in agent.limits and not below:
        wrong_sum = [*wrong_sums(agent, start, call)]
        stage.score.sums += 1
        stage.score.right_sums += not wrong_sum
        differences += wrong_sum
    assert not differences, "\n".join([f"{agent.id}, {layout}:", *differences])


def first_call(stage: Stage, start: Path) -> VendorCall:
    """Run the agent in a folder, and return the first call that carries the prompt."""
    stage.script.on(GREET, Reply("Hello."))
    ended = stage.start(GREET, folder=start).wait(RUN_SECONDS)
    calls = [call for call in stage.vendor.billed("main") if GREET in _all_text(call.request.body)]
    assert calls, f"no request came:\n{ended.output}"
    return calls[0]


def texts_of(value: object) -> Iterator[str]:
    """Yield all texts in a request's body."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from texts_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_of(inner)


def wrong_places(
    footprint: Footprint, texts: list[str], places: dict[str, canaries.Place], home: Path
) -> Iterator[str]:
    """Yield the canaries that are sent though the footprint does not say so, or vice versa."""
    sent, expected = (_canaries_in(texts), _canaries_in(map(_text_of, footprint.parts)))
    for canary in sorted(sent ^ expected):
        path, number = places[canary]
        states = [part.state for part in footprint.parts if part.path == str(home / path)]
        seen = "sent" if canary in sent else "not sent"
        yield f"{path}, canary {number}: {seen}, but in the footprint {states or 'absent'}"


def wrong_texts(footprint: Footprint, texts: list[str]) -> Iterator[str]:
    """Yield the parts whose text, size or end differs from what the request contains."""
    for part in footprint.parts:
        found, text = [*re.finditer(canaries.PATTERN, part.text)], _found_in(texts, part)
        if not text:
            continue  # reported as a wrong place, or without canaries
        start = text.index(found[0][0]) - found[0].start()
        end = text.index(found[-1][0]) - found[-1].start() + len(part.text)
        counted, in_request = truth(part.text), truth(text[max(start, 0) : end])
        has_inside = _has_imports_inside(part, footprint, text[start:end])
        if not has_inside and abs(counted - in_request) > max(2, in_request * BAND / 100):
            yield f"{part.path}: {counted} tokens, but {in_request} in the request"
        if part.state == "cut" and part.kind == "instructions":
            data = _read(part)[part.lost[0].start :]
            rest = data.decode("utf-8", "ignore")[:20]
            if not text[:end].endswith(part.text) or text.startswith(rest, end):
                yield f"{part.path}: cut elsewhere than at byte {part.lost[0].start}"


def wrong_sums(agent: Agent, start: Path, call: VendorCall) -> Iterator[str]:
    """Yield how the sum of the parts in `token-sidecar footprint` differs from the bill.

    If the agent's files contain only its own estimate, the sum may differ by `band_percent`.
    """
    command = [sys.executable, "-P", "-m", "sidecar", "footprint", str(start)]
    command += ["--agent", agent.name, "--json"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    shown: dict[str, Any] = json.loads(output)["agents"][0]
    assert call.usage is not None
    if shown["measured"] is None:
        yield "the footprint names no measured request"
        return
    total, billed = sum(part["tokens"] or 0 for part in shown["parts"]), call.usage.prompt
    if abs(total - billed) > billed * agent.band_percent / 100:
        yield f"the parts have {total} tokens, but {billed} were billed"


def wrong_order(
    footprint: Footprint, body: dict[str, Any], unsorted: frozenset[Kind]
) -> Iterator[str]:
    """Yield the parts that come earlier in the request than in the footprint.

    Tools are compared apart: the vendors put them before or after the system prompt. So is each row
    of parts of a kind that the agent does not sort.
    """
    tools = "\n".join(texts_of(body.get("tools")))
    system = [body.get(key) for key in ("system", "instructions", "systemInstruction")]
    others = [value for key, value in body.items() if value not in system and key != "tools"]
    for text in (tools, _all_text([*system, *others])):
        latest, seen = ("", -1), set[str]()
        before, kind = latest, ""
        for part in footprint.parts:
            canary = re.search(canaries.PATTERN, part.text)
            if canary is None or canary[0] not in text or canary[0] in seen:
                continue
            seen.add(canary[0])
            place = part.path, text.index(canary[0])
            before = before if part.kind == kind and kind in unsorted else latest
            kind = part.kind
            if place[1] < before[1]:
                yield f"{place[0]} is sent before {before[0]}"
            latest = max(latest, place, key=lambda one: one[1])


def _found_in(texts: list[str], part: Part) -> str:
    """Return the text of a request that contains a part's first and last canary, or ""."""
    found = re.findall(canaries.PATTERN, part.text)
    text = next((text for text in texts if found and found[-1] in text), "")
    return text if text and found[0] in text else ""


def _has_imports_inside(part: Part, footprint: Footprint, text: str) -> bool:
    """Return whether the agent put imports into the part's text. They are parts of their own."""
    others = (one for one in footprint.parts if one is not part and one.kind == "import")
    return any(one.text and one.text.strip() in text for one in others)


def _canaries_in(texts: Iterator[str] | list[str]) -> set[str]:
    return {canary for text in texts for canary in re.findall(canaries.PATTERN, text)}


def _all_text(body: object) -> str:
    return "\n".join(texts_of(body))


def _text_of(part: Part) -> str:
    """Return a part's text, also of what is not read because it is outside the project."""
    if not part.is_unread or part.state not in ("sent", "cut"):
        return part.text
    path = Path(part.path)
    files = path.rglob("*") if path.is_dir() else [path]
    return "\n".join(file.read_text() for file in files if file.is_file())


def _read(part: Part) -> bytes:
    with open(part.path, "rb") as file:
        return file.read()
