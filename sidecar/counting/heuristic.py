"""An estimate without a vocabulary: by scripts, words, numbers, marks and white space.

Each byte of the text's UTF-8 becomes a class (a character's first byte gives its script), and
what is added up are weights for runs and neighbours of classes. The weights were
fitted to o200k_base over source code of seven languages, Markdown, JSON, logs, prose in twenty
languages, base64 and white space, and put some 3 % too high on purpose: an estimate that is
a little over is of more use than one that is under. `python -m benchmarks estimates` shows the
errors.

Classes become bits of large integers, one integer for each class: shifts and counts of set bits
find runs and neighbours many times faster than regular expressions would.

The numbers add up: a text cut where `sidecar.text.cuts` allows it costs the sum of its parts.
"""

from __future__ import annotations

from sidecar.counting.features import FOLLOWING, TABLE
from sidecar.text.pieces import split

_SLICE = 65_536
"""Characters looked at in one go: 2 ms in which no other thread runs."""

_TABLE = TABLE.translate(bytes.maketrans(b"wbzeus", b"mmyhrr"))
"""The classes of features, but one each for other Latin letters, for Cyrillic, for Armenian and
Hebrew, and for Arabic and others."""
_MASKS = {
    name: bytes(ord("1") if byte == ord(name) else ord("0") for byte in range(256))
    for name in "aA0. tngyopq"
}
_SCRIPTS = {
    # thousandths for each character, and for each run of them
    "l": (270, 0),
    "k": (1000, 0),
    "g": (300, 500),
    "y": (190, 700),
    "h": (400, 0),
    "r": (340, 0),
    "i": (370, 0),
    "v": (100, 0),
    "p": (500, 1500),
    "q": (400, 1500),
    "j": (640, 0),
    "c": (750, 0),
    "o": (450, 700),
    "f": (900, 0),
    "x": (1260, 0),
}
_AFTER_ASCII = 1450
"""A word broken by a Latin letter of another block costs so much more."""


UNITS = 1020
"""To a token: the weights are thousandths, and turned out two in a hundred too high in all."""


def heuristic_units(text: str) -> int:
    """The weights of `text` added up, `UNITS` to a token; 0 for no text. 25 ms a megabyte."""
    if len(text) <= _SLICE:
        return _slice_units(text)
    return sum([_slice_units(slice_) for part in split(text, _SLICE) for slice_ in _hard(part)])


def heuristic_tokens(units: int) -> int:
    """Tokens for so many units: rounded, at least 1 for any text at all."""
    return max(1, (units + UNITS // 2) // UNITS) if units else 0


def _hard(part: str) -> list[str]:
    """A part without a safe cut for long is cut all the same: it is an estimate."""
    if len(part) <= 2 * _SLICE:
        return [part]
    return [part[start : start + _SLICE] for start in range(0, len(part), _SLICE)]


def _slice_units(text: str) -> int:
    if not text:
        return 0
    classes = text.encode("utf-8", "surrogatepass").translate(_TABLE, FOLLOWING)
    units = len(classes) + _ascii(classes)  # a thousandth each: no text is free
    return units if text.isascii() else units + _scripts(classes)


def _mask(classes: bytes, name: str) -> int:
    """One bit for each class, the first one highest: set where it is `name`."""
    return int(classes.translate(_MASKS[name]) or b"0", 2)


def _beyond(first: int, goes_on: int, most: int) -> list[int]:
    """For k from 0 to `most`: by how much runs are longer than k, in all.

    `first` has every character of the runs set, `goes_on` those that are not a run's first. The
    number of runs longer than k is element k less element k + 1.
    """
    found, reached = [first.bit_count()], first
    for _ in range(most):
        reached = goes_on & (reached >> 1)
        found.append(reached.bit_count())
    return found


def _runs(mask: int, most: int) -> list[int]:
    return _beyond(mask, mask & (mask >> 1), most)


def _ascii(classes: bytes) -> int:
    lower, upper, digit = (_mask(classes, name) for name in "aA0")
    mark, line = _mask(classes, "."), _mask(classes, "n")
    capital = upper & (lower << 1)
    letter = lower | upper
    attached = (mark >> 1) & letter
    after_digit = (digit >> 1) & letter
    return (
        _words(_beyond(lower | capital, lower & ((lower | capital) >> 1), 11))
        + _capitals(_runs(upper & ~capital, 4))
        + _numbers(_runs(digit, 9))
        + _marks(_runs(mark, 3))
        + _white(classes, _runs(line, 1), digit)
        - 390 * attached.bit_count()  # a mark is taken along by the word after it,
        - 1750 * ((mark >> 1) & line).bit_count()  # and takes line ends along
        + 350 * after_digit.bit_count()
    )


def _words(over: list[int]) -> int:
    longer = [over[k] - over[k + 1] for k in range(11)]
    return 880 * longer[0] + 260 * longer[4] + 190 * longer[7] - 870 * longer[10] + 620 * over[10]


def _capitals(over: list[int]) -> int:
    longer = [over[k] - over[k + 1] for k in range(4)]
    return 1680 * longer[0] - 1220 * longer[1] + 1180 * longer[3] + 300 * over[4]


def _numbers(over: list[int]) -> int:
    longer = [over[k] - over[k + 1] for k in range(9)]
    return 1030 * (longer[0] + longer[3] + longer[6]) + 343 * over[9]


def _marks(over: list[int]) -> int:
    longer = [over[k] - over[k + 1] for k in range(3)]
    return 900 * longer[0] + 850 * longer[1] - 490 * longer[2] + 280 * over[3]


def _white(classes: bytes, lines: list[int], digit: int) -> int:
    space, tab = _mask(classes, " "), _mask(classes, "t")
    blank = space | tab
    blanks = _runs(blank, 2)
    lone_tab = tab & ~(blank >> 1) & ~(blank << 1)
    return (
        760 * (blanks[1] - blanks[2] + lone_tab.bit_count())
        + 15 * blanks[2]
        + 1360 * ((space >> 1) & digit).bit_count()  # a space before a number stands alone
        + 1800 * (lines[0] - lines[1])
        + 30 * lines[1]
    )


def _scripts(classes: bytes) -> int:
    units = _AFTER_ASCII * (classes.count(b"am") + classes.count(b"Am"))
    for script, (character, run) in _SCRIPTS.items():
        count = classes.count(script.encode())
        units += character * count
        if count and run:
            one, two = _runs(_mask(classes, script), 1)
            units += run * (one - two)
    return units
