"""Guesses at token counts without any vocabulary, and the registry that plug-ins add theirs to.

Three are built in: `heuristic`, which looks at scripts, words and white space and is what counts
where another fails; `whitespace`, a words-and-punctuation rule; `chars4`, a quarter of the
characters. All are pure, take milliseconds a megabyte, and call an empty text 0.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from sidecar.counting.estimates import Bands, bands_of
from sidecar.counting.heuristic import heuristic_tokens, heuristic_units
from sidecar.counting.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sidecar.config.settings import Truncation
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


@runtime_checkable
class Truncating(Estimator, Protocol):
    """An estimator that cuts texts by itself; where one does not, `sidecar.counting.fit` cuts."""

    def truncate(self, text: str, max_tokens: int, mode: Truncation) -> str:
        """What is kept of `text`: its beginning ("start"), its end or both ends ("middle"), in at
        most `max_tokens` tokens by its own estimate. What is more is not used."""


class Heuristic:
    """By script, word, number and white space (see `sidecar.counting.heuristic`)."""

    name = "heuristic"

    def estimate(self, text: str) -> int:
        """Weights added up, then rounded."""
        return heuristic_tokens(heuristic_units(text))


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


class Chars4:
    """A quarter of the characters, rounded down."""

    name = "chars4"

    def estimate(self, text: str) -> int:
        """floor(characters / 4)."""
        return len(text) // 4


_log = logging.getLogger(__name__)
_TRIED = "A plug-in is tried with this: 1 line.\n"
_lock = threading.Lock()
_registry: dict[str, Estimator] = {}
_broken: dict[str, str] = {}
"""Plug-ins that cannot be used, and why, by name."""
_plugins_read = False


def register(estimator: Estimator, name: str | None = None) -> None:
    """Add an estimator, or put it in the place of the one of that name."""
    with _lock:
        _registry[name or estimator.name] = estimator


def names() -> list[str]:
    """The estimators that can be asked for, plug-ins included."""
    _read_plugins()
    return sorted(_registry)


def broken() -> dict[str, str]:
    """Why plug-ins are not used, by their names."""
    _read_plugins()
    return dict(_broken)


def why_not(name: str) -> str | None:
    """Why an estimator that was asked for does not count; None where it does."""
    if estimator(name) is not None and name not in _broken:
        return None
    reason = _broken.get(name) or f"there is none of that name, only {', '.join(names())}"
    return f"estimator {name}: {reason}; the default counts instead"


def estimator(name: str) -> Estimator | None:
    """An estimator by name; None where there is none of that name."""
    if name not in _registry:
        _read_plugins()
    return _registry.get(name)


def default() -> Estimator:
    """What counts where a plug-in fails."""
    return _registry["default"]


def _read_plugins() -> None:
    """Look for entry points, once. One that fails is left out: it must not break counting."""
    global _plugins_read
    if _plugins_read:
        return
    _plugins_read = True
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINTS):
        if point.name in BUILT_IN:
            _broken[f"{point.name} (plug-in)"] = "the name is a built-in one's"
            continue
        try:
            register(_usable(point.load()), point.name)
        except _UnusableError as error:
            _broken[point.name] = f"the plug-in cannot be used: {error}"
        except Exception as error:  # somebody else's code
            _broken[point.name] = f"the plug-in cannot be used ({type(error).__name__})"


class _UnusableError(Exception):
    """A plug-in does not do what is asked of it."""


def _usable(loaded: Any) -> Estimator:
    """The estimator that an entry point is, or makes."""
    is_made = hasattr(loaded, "estimate") and not isinstance(loaded, type)
    found: Estimator = loaded if is_made else loaded()
    if not isinstance(getattr(found, "name", None), str):
        raise _UnusableError("it has no name")
    if found.estimate("") != 0:
        raise _UnusableError("an empty text is not 0 tokens to it")
    int(found.estimate(_TRIED))
    return found


for _each in (Heuristic(), Whitespace(), Chars4()):
    register(_each)
register(Heuristic(), "default")
BUILT_IN = frozenset(_registry)


class HeuristicUnits(Tokenizer):
    """The heuristic's weights, which add up over the pieces of a text."""

    name = "heuristic units"
    method: Method = "estimate"
    error_percent = None
    cuts: Cuts = "lines"

    def count(self, text: str) -> int:
        """The weights of `text`, added up."""
        return heuristic_units(text)


def _measured_bands(name: str) -> Bands:
    """How far a built-in estimator is off."""
    found = bands_of(name)
    if found is None:
        raise LookupError(f"estimates.json has no bands of {name}")
    return found


class Estimated(Tokenizer):
    """An estimator as a tokenizer. A text is estimated as a whole: guesses need not add up."""

    method: Method = "estimate"

    def __init__(self, estimator: Estimator) -> None:
        self.name = estimator.name
        self.estimator = estimator
        self._bands = bands_of(estimator.name)
        self.error_percent: float = 100 * (self._bands or _measured_bands(Chars4.name)).any

    def band(self, tokens: int, sample: str = "") -> float:
        """Half of the band for a text of this kind and size.

        Nobody has measured a plug-in. So it is as uncertain as where its number lies in the
        heuristic's band, by the beginning of the text; where none is given, as the coarsest rule.
        """
        if self._bands is not None:
            return self._bands.percent(tokens, sample)
        return self._beside_the_heuristic(tokens, sample) if sample else self.error_percent

    def _beside_the_heuristic(self, tokens: int, sample: str) -> float:
        """What the plug-in's number needs to reach over both ends of the heuristic's band."""
        said = max(1, self.count(sample))
        ratio = Heuristic().estimate(sample) / said
        share = _measured_bands(Heuristic.name).percent(max(1, round(tokens * ratio)), sample) / 100
        return round(100 * max(ratio * (1 + share) - 1, 1 - ratio * (1 - share)), 1)

    def count(self, text: str) -> int:
        """Tokens in `text`, at a guess; never raises, whatever a plug-in does."""
        try:
            return max(0, int(self.estimator.estimate(text)))
        except Exception as error:
            if self.name not in _broken:
                _log.warning("estimator %s failed; the heuristic counts instead", self.name)
            _broken[self.name] = f"the plug-in failed ({type(error).__name__})"
            return default().estimate(text)

    def truncated(self, text: str, max_tokens: int, mode: Truncation) -> str | None:
        """The plug-in's own cut; None where it makes none, fails, or keeps too much."""
        if not isinstance(self.estimator, Truncating):
            return None
        try:
            kept: object = self.estimator.truncate(text, max_tokens, mode)
        except Exception as error:  # somebody else's code
            _broken[self.name] = f"the plug-in failed to cut ({type(error).__name__})"
            return None
        return kept if isinstance(kept, str) and self.count(kept) <= max_tokens else None
