"""Generates documents and edits that add, remove and hide safe split points."""

from __future__ import annotations

import random

from sidecar.text.document import Range, TextDocument

CODE = """def walk(tree, depth=0):
    \"\"\"Walk the tree, it's fine.\"\"\"
    for node in tree:

        yield node, depth + 1
\tif (a[0] != b) { return /* none */ x1; }
// comment
/ slash
/* block */
    </div>
"""
PROSE = "The quick brown fox can't jump; they'LL see 12345 things. Überraschung, naïve Größe! "
FRENCH = "C’est l'été à l’école, où l'on s'ennuie... «Déjà vu»? "
SPANISH = "Uno y dos, ¿y la canción que el niño y los otros oían? Y x y z = y "
RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю. "
CHINESE = "今天天气很好，我们去公园散步。“你好！”他说：这是一个测试（真的）；"
JAPANESE = "吾輩は猫である。名前はまだ無い。カタカナ・テスト、「ひらがな」ー。"
KOREAN = "안녕하세요. 저는 학생입니다, 그리고 오늘은 날씨가 좋네요! "
EMOJI = "👩‍👩‍👧‍👦 ok 🇩🇪🇫🇷 👍🏽! 🤷🏿‍♂️😀😀 e\u0301a\u0308 ñ "
BLANKS = " \t  \n\n \n\t\r\n  \x0b\x0c\x85\u2028\u2029\u3000\u00a0\r\r\n \x1c\x1d "
ODD = "\ud83d\ude00\ud800\udc00 ſ'ſ 'ſt \u0e31\u0300\u200b\ufeff\x00\x01\x7f \U00010940\u088f ǅʰⅷ² "
MARKS = "!!??..//--==##**[]{}()<>\"'`~|\\/\n/\r/ /\n//\n"
DIGITS = "0123456789 3.14159 1,000,000 ١٢٣ "
GENES = "ACGTTGCAACGT" * 40
"""A long string without a safe split point."""
SPECIAL = "<|endoftext|><|im_start|>user\n<|endofprompt|>"
STOCK = (
    *(CODE, PROSE, FRENCH, RUSSIAN, CHINESE, JAPANESE, KOREAN, EMOJI, BLANKS, ODD, MARKS),
    *(DIGITS, GENES, SPANISH, SPECIAL),
)
SNIPPETS = (
    *("", "", "", "x", " ", "  ", "\t", "\n", "\r", "\r\n", "\n\n", "/", "//", "'", "'s", "'S"),
    *("’", "1", "12", ".", "。", "\x0c", "\u2028", "\x85", "\u00a0", "\u3000", "é", "字", "😀"),
    *("\ud83d", "\ude00", "\u0301", "\u200d", "ſ", "    ", "\n    ", "\n/", "/\n", "a/b\n/c"),
    *("word", " word", "WORD", "don't", "{\n", "}\n", "\n\n\n", " \n ", "\t\n\t", "<|endoftext|>"),
    *("y", " y", "y ", " y "),
)


def document_text(rng: random.Random, characters: int) -> str:
    """Return about `characters` characters of one or several kinds of text.

    The line endings are sometimes unusual.
    """
    stock = rng.sample(STOCK, rng.choice((1, 2, 4, len(STOCK))))
    parts, length = [], 0
    while length < characters:
        part = rng.choice(stock)
        if rng.random() < 0.2:
            start = rng.randrange(len(part))
            part = part[start : start + rng.randrange(1, 30)]
        parts.append(part + rng.choice(("", "", "\n", "\n", " ", "\n\n")))
        length += len(parts[-1])
    text = "".join(parts)
    ending = rng.choice(("\n", "\n", "\n", "\r\n", "\r"))
    return text if ending == "\n" else text.replace("\r\n", "\n").replace("\n", ending)


def snippet(rng: random.Random) -> str:
    """Return text that a user might type or paste. It is usually short."""
    chance = rng.random()
    if chance < 0.75:
        return rng.choice(SNIPPETS)
    if chance < 0.97:
        part = rng.choice(STOCK)
        start = rng.randrange(len(part))
        return part[start : start + rng.randrange(40)]
    return document_text(rng, rng.randrange(4_000))


def place(rng: random.Random, doc: TextDocument) -> int:
    """Return a random offset, often near the boundary between two pieces."""
    if rng.random() < 0.4:
        return rng.randrange(doc.characters + 1)
    pieces = doc.pieces
    boundary = sum(len(piece) for piece in pieces[: rng.randrange(len(pieces) + 1)])
    return max(0, min(doc.characters, boundary + rng.choice((-3, -2, -1, 0, 0, 0, 1, 2, 3, 5, 9))))


def edit(rng: random.Random, doc: TextDocument) -> tuple[Range, str]:
    """Return a random edit in the document's position encoding, often across a boundary between
    pieces.
    """
    start = place(rng, doc)
    chance = rng.random()
    if chance < 0.5:
        end = start
    elif chance < 0.95:
        end = min(doc.characters, start + rng.randrange(12))
    else:
        end = min(doc.characters, start + rng.randrange(1 + doc.characters // 4))
    return Range(doc.position_at(start), doc.position_at(end)), snippet(rng)
