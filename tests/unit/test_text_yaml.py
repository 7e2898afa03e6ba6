"""Tests that nested YAML is read as PyYAML reads it, except that all scalars are text."""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml

from sidecar.text.prompt_markdown import read_nested_yaml


class Texts(yaml.SafeLoader):
    """A loader that reads all scalars as text."""


Texts.yaml_implicit_resolvers = {}

DOCUMENTS = [
    "a: 1\nb:\n  c: two\n",
    "---\n# head\nmodel:   # which\n  default: gpt-5 # newest\n\n  window: 250000\n",
    "list:\n- id: x\n  n: 1\n-   id: y\n    inner:\n      - p\n      - q: 2\n",
    "list:\n    - id: x\n      n: 1\n    - n: 2\n      id: 'y z'\n",
    "models:\n  \"openai/gpt-5\":\n    n: 1\n  qwen3.5:27b:\n    n: 2\n  'a b': {c}\n".replace("{c}", "c"),
    "url: http://localhost:1/v1\nurls:\n- http://localhost:2/v1\n- x\n",
    "- a: 1\n- b: 2\n",
]  # fmt: skip


@pytest.mark.parametrize("text", DOCUMENTS)
def test_documents_are_read_as_pyyaml_reads_them(text: str) -> None:
    expected: Any = yaml.load(text, Loader=Texts)  # noqa: S506
    assert read_nested_yaml(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(" " * level + "a:" for level in range(1_200)),
        "- " * 20_000,
        "a" * 200_000 + " " * 200_000,
        "a: " + ":" * 300_000,
        '"' * 300_000,
    ],
    ids=["deep", "dashes", "spaces", "colons", "quotes"],
)
def test_hostile_documents_are_read_in_time(text: str) -> None:
    started = time.process_time()
    read_nested_yaml(text)
    assert time.process_time() - started < 2
