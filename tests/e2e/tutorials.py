"""Reads samples and expected outputs from the tutorials, so that tests can follow them."""

from __future__ import annotations

import re

from tests.e2e.editors_setup import ROOT

FOLDER = ROOT / "docs/tutorial"


def read(editor: str) -> str:
    """Return an editor's tutorial."""
    return (FOLDER / f"{editor}.md").read_text("utf-8")


def sample(page: str, language: str) -> str:
    """Return the first code block in this language."""
    return promised(page, rf"```{language}\n(.*?)```")


def sentence(page: str) -> str:
    """Return the prompt that the tutorial tells users to type."""
    return sample(page, "text").strip()


def promised(page: str, pattern: str) -> str:
    """Return the text in the page that the pattern's group matches. Fail if there is no match."""
    match = re.search(pattern, page, re.DOTALL)
    assert match is not None, pattern
    return match[1]
