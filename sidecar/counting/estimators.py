"""Guesses at token counts without any vocabulary, and the registry that plug-ins add theirs to.

Three are built in: `default` (named `heuristic` in counts), which looks at scripts, words and white
space; `whitespace`, a words-and-punctuation rule; `chars4`, a quarter of the characters. All
are pure, take milliseconds a megabyte, and call an empty text 0.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from sidecar.counting.heuristic import heuristic_tokens, heuristic_units

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.counting.count import Method
    from sidecar.text.cuts import Cuts

ENTRY_POINTS = "token_sidecar.estimators"
"""Entry-point group: each entry is an `Estimator`, or a callable that makes one."""


class Estimator(Protocol):
    """One way of guessing. Never raises on any `str`; an empty text is 0 tokens."""

    @property
    def name(self) -> str:
        """What counts made by it are labelled with."""

    def estimate(self, text: str) -> int:
        """Tokens in `text`, at a guess."""

    def truncate(self, text: str, max_tokens: int) -> str:
        """The longest beginning of `text`, in whole characters, of at most `max_tokens` tokens."""


def truncate_by(estimate: Callable[[str], int], text: str, max_tokens: int) -> str:
    """`truncate` for any estimate that does not fall when a text grows: by halving."""
    if max_tokens <= 0:
        return ""
    if estimate(text) <= max_tokens:
        return text
    low, high = 0, min(len(text), 1024)
    while high < len(text) and estimate(text[:high]) <= max_tokens:
        low, high = high, min(len(text), 2 * high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if estimate(text[:middle]) <= max_tokens else (low, middle)
    return text[:low]


class Heuristic:
    """The default: by script, word, number and white space (see `sidecar.counting.heuristic`)."""

    name = "heuristic"

    def estimate(self, text: str) -> int:
        """Weights added up, then rounded."""
        return heuristic_tokens(heuristic_units(text))

    def truncate(self, text: str, max_tokens: int) -> str:
        """The longest beginning that is estimated at no more than `max_tokens`."""
        return truncate_by(self.estimate, text, max_tokens)


_MARKS = frozenset(""".,;!?'"-(){}[]""")
_CODE_MARKS = frozenset("{}[];=<>")


class Whitespace:
    """Words, half a token for each mark, and again for those of code; at least characters / 4."""

    name = "whitespace"

    def estimate(self, text: str) -> int:
        """ceil(max(words + marks / 2 + code marks / 2, characters / 4)), in whole numbers."""
        words = len(text.split())
        marks = sum(map(text.count, _MARKS)) + sum(map(text.count, _CODE_MARKS))
        return max(-(-(2 * words + marks) // 2), -(-len(text) // 4))

    def truncate(self, text: str, max_tokens: int) -> str:
        """The longest beginning that is estimated at no more than `max_tokens`."""
        return truncate_by(self.estimate, text, max_tokens)


class Chars4:
    """A quarter of the characters, rounded down."""

    name = "chars4"

    def estimate(self, text: str) -> int:
        """floor(characters / 4)."""
        return len(text) // 4

    def truncate(self, text: str, max_tokens: int) -> str:
        """The first 4 * max_tokens + 3 characters."""
        return text[: 4 * max_tokens + 3] if max_tokens > 0 else ""


_lock = threading.Lock()
_registry: dict[str, Estimator] = {}
_plugins_read = False


def register(estimator: Estimator, name: str | None = None) -> None:
    """Add an estimator, or put it in the place of the one of that name."""
    with _lock:
        _registry[name or estimator.name] = estimator


def names() -> list[str]:
    """The estimators that can be asked for, plug-ins included."""
    _read_plugins()
    return sorted(_registry)


def estimator(name: str) -> Estimator | None:
    """An estimator by name; None where there is none of that name."""
    if name not in _registry:
        _read_plugins()
    return _registry.get(name)


def default() -> Estimator:
    """The estimator for what nothing else knows."""
    return _registry["default"]


def _read_plugins() -> None:
    """Look for entry points, once. One that fails is left out: it must not break counting."""
    global _plugins_read
    if _plugins_read:
        return
    _plugins_read = True
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINTS):
        try:
            made = point.load()
            found: Estimator = made() if isinstance(made, type) else made
            if found.estimate("") == 0:
                register(found, point.name)
        except Exception:  # noqa: S112 - somebody else's code
            continue


for _each in (Heuristic(), Whitespace(), Chars4()):
    register(_each)
register(Heuristic(), "default")


class HeuristicUnits:
    """The heuristic's weights, which add up over the pieces of a text."""

    name = "heuristic units"
    method: Method = "estimate"
    error_percent: float | None = None
    cuts: Cuts = "lines"

    def count(self, text: str) -> int:
        """The weights of `text`, added up."""
        return heuristic_units(text)


class Estimated:
    """An estimator as a tokenizer. A text is estimated as a whole: guesses need not add up."""

    method: Method = "estimate"
    error_percent: float | None = None
    cuts: Cuts = "none"

    def __init__(self, estimator: Estimator) -> None:
        self.name = estimator.name
        self.estimator = estimator

    def count(self, text: str) -> int:
        """Tokens in `text`, at a guess; never raises, whatever a plug-in does."""
        try:
            return max(0, int(self.estimator.estimate(text)))
        except Exception:
            return default().estimate(text)
