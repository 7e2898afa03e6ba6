"""Compares predicted prompts with the usage that a real llama.cpp reports.

Conversations have 30 turns of code, JSON, prose, Chinese, Japanese and Korean, and are counted with
several vocabularies and a chat template. As in the status, each prompt is predicted before its usage
is reported: the reported tokens of the previous call plus the calibrated estimate of the new texts.
The peer is a quarter of the characters.
"""

from __future__ import annotations

import email.message
import inspect
import json
import pathlib
import random
import tempfile
import textwrap
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx

from benchmarks.page import PERCENT, figure
from benchmarks.texts import CHINESE, JAPANESE, KOREAN
from sidecar.conversations.conversation import Conversation
from sidecar.conversations.occupancy import occupancy
from sidecar.conversations.turn_counts import Counter
from sidecar.counting.calibration import Calibrations, ConversationCalibration
from sidecar.counting.tokenizer_choice import Tokenizers
from sidecar.messages.messages import Turn
from sidecar.messages.vendor_usage import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator

TURNS, FIRST_JUDGED = 30, 4
VOCABULARIES = ("gpt-2", "llama-bpe", "qwen2")
SEEDS = (1, 2, 3)
CONTEXT = 8_192
MODEL = "tiny"

Message = dict[str, Any]


class Errors(NamedTuple):
    """The relative errors of one predicted prompt: |predicted - reported| / reported."""

    ours: float
    chars4: float


def conversation(seed: int, turns: int = TURNS) -> list[tuple[str, str]]:
    """Return questions and replies of various kinds and lengths. The seed determines them."""
    source = random.Random(seed)
    return [(_text(source), _text(source)) for _ in range(turns)]


def _text(source: random.Random) -> str:
    kind = source.choice((_code, _data, _prose, _cjk))
    text = kind(source)
    length = source.randrange(40, 140) if kind is _cjk else source.randrange(80, 300)
    start = source.randrange(max(1, len(text) - length))
    return text[start : start + length]


def _code(source: random.Random) -> str:
    module = source.choice((random, textwrap, tempfile, pathlib, email.message, json))
    return inspect.getsource(module)


def _data(source: random.Random) -> str:
    rows = [
        {
            "id": source.randrange(10**6),
            "name": f"item-{number}",
            "tags": source.sample(["alpha", "beta", "gamma", "delta"], 2),
            "price": round(source.random() * 100, 2),
            "checksum": source.randbytes(8).hex(),
        }
        for number in range(20)
    ]
    return json.dumps(rows, indent=source.choice((None, 2)))


def _prose(source: random.Random) -> str:
    documented = [tempfile, random, pathlib.Path, textwrap.TextWrapper, json, email.message.Message]
    paragraphs = [inspect.getdoc(one) or "" for one in documented]
    source.shuffle(paragraphs)
    return " ".join(" ".join(paragraphs).split())


def _cjk(source: random.Random) -> str:
    return source.choice((CHINESE, JAPANESE, KOREAN))


def prompt_errors(url: str, seed: int) -> Iterator[Errors]:
    """Return the errors of each prompt, in order, against the server at `url`."""
    tokenizer = Tokenizers().for_model(MODEL)
    calibration = ConversationCalibration(Calibrations(), MODEL, tokenizer.name)
    session = Conversation("benchmark", Counter(MODEL, tokenizer))
    messages: list[Message] = []
    for question, reply in conversation(seed):
        messages.append({"role": "user", "content": question})
        session.append([Turn(role="user", content=question)])
        predicted = occupancy(session, calibration).tokens
        reported = reported_prompt(url, messages)
        quarter = sum(len(message["content"]) for message in messages) // 4
        yield Errors(abs(predicted - reported) / reported, abs(quarter - reported) / reported)
        messages.append({"role": "assistant", "content": reply})
        output = output_of(url, reply)
        usage = Usage(input_tokens=reported, prompt_tokens=reported, output_tokens=output)
        showed = session.append([Turn(role="assistant", content=reply)], usage)
        if showed.sample is not None:
            calibration.update(showed.sample)


def reported_prompt(url: str, messages: list[Message]) -> int:
    """Return the prompt tokens that the server reports with a real reply."""
    body = {"messages": messages, "max_tokens": 1, "cache_prompt": True}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120).json()
    return int(answer["usage"]["prompt_tokens"])


def output_of(url: str, reply: str) -> int:
    """Return the number of tokens that the model's vocabulary has for a reply."""
    body = {"content": reply, "parse_special": False}
    return len(httpx.post(f"{url}/tokenize", json=body, timeout=120).json()["tokens"])


def mean_errors(url: str, seed: int) -> Errors:
    """Return the mean errors over turns 4 to 30."""
    return means(list(prompt_errors(url, seed))[FIRST_JUDGED - 1 :])


def means(errors: list[Errors]) -> Errors:
    """Return the mean errors of several prompts."""
    return Errors(mean(one.ours for one in errors), mean(one.chars4 for one in errors))


def run() -> None:
    """Print the mean errors for each vocabulary."""
    from tests.e2e.llama.gguf import write_model
    from tests.e2e.llama.server import llama
    from tests.e2e.llama.vocabularies import ensure_vocabularies

    print("\nWhole prompts predicted, turns 4 to 30: mean error against a real llama.cpp's usage")
    drawn = figure(f"Error of whole prompts, mean of {len(SEEDS)}", "turns", PERCENT)
    paths = ensure_vocabularies()
    with tempfile.TemporaryDirectory() as folder:
        for name in VOCABULARIES:
            model = pathlib.Path(folder) / f"{name}.gguf"
            write_model(model, paths[name], context=CONTEXT)
            with llama(model, "--context", str(CONTEXT)) as url:
                found = [list(prompt_errors(url, seed)) for seed in SEEDS]
            ours, chars4 = means([one for some in found for one in some[FIRST_JUDGED - 1 :]])
            for turn, errors in enumerate(zip(*found, strict=True), start=1):
                drawn.add(f"calibrated, {name}", turn, means(list(errors)).ours)
                drawn.add(f"chars/4, {name}", turn, means(list(errors)).chars4)
            print(f"{name:12} calibrated {100 * ours:.2f} %   chars/4 {100 * chars4:.1f} %")
