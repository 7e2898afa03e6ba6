"""Evaluates the table of estimates with documents to which it was not fitted."""

from __future__ import annotations

import json
import subprocess
from statistics import mean, median
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

import numpy as np

from benchmarks.fitting.environment import FOLDER
from sidecar.counting import tokenizer_choice
from sidecar.counting.estimators import Chars4
from sidecar.counting.tokenizer_choice import Tokenizers
from sidecar.models.names import generation_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.fitting.fit import Corpus
    from sidecar.counting.tokenizer_interface import Tokenizer

MODELS = (
    *("claude-3-7-sonnet", "claude-sonnet-4-5", "claude-haiku-4-5", "claude-opus-4-6"),
    *("claude-opus-4-7", "claude-opus-5"),
    *("gemini-2.5-pro", "gemini-3-pro", "gemma-3-27b"),
    *("qwen2.5-coder-32b", "qwen3-235b", "qwen3.5-plus", "qwen3.6-27b"),
    *("deepseek-v3.2", "deepseek-r1"),
    *("mistral-small-2506", "devstral-small", "mistral-7b-instruct", "mixtral-8x7b"),
    *("llama-3.3-70b", "llama-2-13b", "command-r-plus", "gpt2"),
    *("gpt-5", "gpt-4"),
)
_PEERS = """
import { readFileSync } from "node:fs";
import { estimateTokenCount } from "tokenx";
import Tokenizer, { models } from "ai-tokenizer";
import * as encodings from "ai-tokenizer/encoding";
const texts = JSON.parse(readFileSync(0, "utf8"));
const of = (name) => {
  const model = models[name], made = new Tokenizer(encodings[model.encoding]);
  const factor = model.tokens?.contentMultiplier ?? 1;
  return texts.map((text) => made.count(text.replace(/<(?=[A-Z|])/g, "< ")) * factor);
};
const found = { tokenx: texts.map((text) => estimateTokenCount(text)) };
for (const name of process.argv.slice(1).filter((name) => models[name])) found[name] = of(name);
console.log(JSON.stringify(found));
"""
_THEIRS = {
    "claude": "anthropic/claude-sonnet-4.5",
    "claude-4.7": "anthropic/claude-opus-4.5",
    "gemma": "google/gemini-3-pro-preview",
    "qwen3.5": "alibaba/qwen3-max",
    "deepseek": "deepseek/deepseek-v3.1",
    "tekken": "mistral/mistral-small",
    "llama3": "meta/llama-3.3-70b",
}


class Judged(NamedTuple):
    """The quality of a model's estimates of held-out documents, in percent."""

    covered: float
    width: float
    """The median of half the band."""
    off: float
    """The mean absolute error."""


def judge(found: Corpus) -> None:
    """Print bands and errors by model, the errors of peers, and the errors in conversations."""
    texts = [one.text for one in found.documents if one.held_out]
    without = _without_extras()
    _print_coverage(found, without)
    print("\nHeld-out documents: covered by the band, median ±, mean error (%)")
    for model in MODELS:
        real = found.truths[generation_of(model)][found.held]
        for name, tokenizers in (("", Tokenizers()), (" without extras", without)):
            tokenizer = tokenizers.for_model(model)
            if name and Tokenizers().for_model(model).name == tokenizer.name:
                continue
            one = judged(tokenizer, texts, real.tolist())
            print(f"{model + name:34} {one.covered:6.1f} {one.width:6.1f} {one.off:6.2f}")
    _print_peers(found, texts)

    from benchmarks.fitting.dialogues import judge_dialogues

    judge_dialogues(found)


def _print_coverage(found: Corpus, without: Tokenizers) -> None:
    """Print each generation's coverage of known sources, of new sources and of each new source."""
    known, new = found.of(found.uses == "held"), found.of(found.uses == "judge")
    sources = sorted({one.source for one in new.documents})
    print("\nCovered by the 95 % band: known sources, new sources, the mean of new sources (%)")
    for generation, model in _by_generation().items():
        tokenizer = without.for_model(model)
        if tokenizer.method == "exact":
            continue
        names = [generation] if generation in found.truths else list(found.truths)
        shares = [mean(_covered(tokenizer, half, names)) for half in (known, new)]
        each = {}
        for source in sources:
            some = new.of(np.array([one.source == source for one in new.documents]))
            each[source] = 100 * mean(_covered(tokenizer, some, names))
        by_source = ", ".join(f"{source} {share:.0f}" for source, share in each.items())
        print(
            f"{model:22} {100 * shares[0]:6.1f} {100 * shares[1]:6.1f} {mean(each.values()):6.1f}"
            f"   {by_source}"
        )


def _by_generation() -> dict[str, str]:
    return {generation_of(model): model for model in (*MODELS, "a-model-of-nobody")}


def _covered(tokenizer: Tokenizer, found: Corpus, names: Sequence[str]) -> list[bool]:
    """Return whether the band contains the true count, for each document and vocabulary."""
    within = []
    for index, document in enumerate(found.documents):
        measure = tokenizer.measure(tokenizer.count(document.text), document.text)
        half = measure.tokens * (measure.error_percent or 0.0) / 100 + 0.5
        within += [abs(float(found.truths[name][index]) - measure.tokens) <= half for name in names]
    return within


def _without_extras() -> Tokenizers:
    """Return tokenizers that use no vocabularies but OpenAI's."""
    made = Tokenizers()
    with patch.object(
        tokenizer_choice, "has_own_vocabulary", tokenizer_choice.ENGINES.__contains__
    ):
        for model in MODELS:
            made.for_model(model)
    return made


def judged(tokenizer: Tokenizer, texts: list[str], real: list[float]) -> Judged:
    """Compare a tokenizer's estimates with the true counts."""
    measures = [tokenizer.measure(tokenizer.count(text), text) for text in texts]
    bands = [one.error_percent for one in measures]
    pairs = list(zip(measures, real, strict=True))
    within = [
        abs(truth - one.tokens) <= one.tokens * (one.error_percent or 0) / 100 + 0.5
        for one, truth in pairs
    ]
    return Judged(
        100 * mean(within),
        median(band or 0.0 for band in bands),
        100 * mean(abs(one.tokens - truth) / truth for one, truth in pairs),
    )


def _print_peers(found: Corpus, texts: list[str]) -> None:
    command = ("node", "--input-type=module", "-e", _PEERS, *_THEIRS.values())
    run = subprocess.run(
        command, input=json.dumps(texts), capture_output=True, text=True, cwd=FOLDER, check=True
    )
    theirs = json.loads(run.stdout)
    chars4 = [Chars4().estimate(text) for text in texts]
    print("\nMean error of a held-out document (%): ours, chars/4, tokenx, ai-tokenizer")
    without = _without_extras()
    models = {generation_of(model): model for model in MODELS}
    for generation, name in _THEIRS.items():
        real = found.truths[generation][found.held].tolist()
        ours = judged(without.for_model(models[generation]), texts, real).off
        others = (_off(guesses, real) for guesses in (chars4, theirs["tokenx"], theirs.get(name)))
        print(f"{generation:12} {ours:6.2f}" + "".join(f"{off:>8}" for off in others))


def _off(guesses: Sequence[float] | None, real: Sequence[float]) -> str:
    if guesses is None:
        return "-"
    off = mean(abs(guess - truth) / truth for guess, truth in zip(guesses, real, strict=True))
    return f"{100 * off:.1f}"
