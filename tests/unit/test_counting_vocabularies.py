"""Tests that counts with vocabulary files equal those of the `tokenizers` library, and that split
points are safe.
"""

from __future__ import annotations

import base64
import json
import struct
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from sidecar.counting import model_tokenizers, vocabulary_files
from sidecar.counting.exact_engines import without_lone_surrogates
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
from sidecar.text.pieces import split
from tests.fuzz.edits import STOCK

if TYPE_CHECKING:
    from pathlib import Path

SAMPLE = without_lone_surrogates("".join(STOCK)) + "".join(
    f"  {n} x{n}_y = f({n * 37}, 'it''s')\n" for n in range(40)
)

AWKWARD = st.one_of(
    st.sampled_from(
        [
            *(
                "\n",
                "\n\n",
                "\r\n",
                " ",
                "  ",
                "\t",
                "    ",
                "/",
                "//",
                "'s",
                "'LL",
                "'",
                "ſ",
                "1234",
            ),
            *(
                "hello",
                "World",
                "ABC",
                "é",
                "e\u0301",
                "\u0301",
                "日本",
                "カナ",
                "。",
                "한국",
                "٣٤",
                "²",
            ),
            *(
                ".",
                "!!",
                "()",
                "_",
                "=",
                "\u00a0",
                "\u2028",
                "\x1c",
                "😀",
                "<|endoftext|>",
                "\u30fb",
            ),
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


def test_library_is_used_only_if_tiktoken_is_not_equivalent(
    tmp_path: Path,
) -> None:
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


def gguf(pattern: Pattern, pre: str) -> bytes:
    """Return the GGUF header of a model with the trained vocabulary."""
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
        text(b"tokenizer.ggml.tokens") + texts([*tokens, b"<|end|>"]),
        text(b"tokenizer.ggml.merges") + texts(merges),
        text(b"tokenizer.ggml.token_type")
        + struct.pack("<IIQ", 9, 5, len(tokens) + 1)
        + struct.pack(f"<{len(tokens) + 1}i", *([1] * len(tokens) + [3])),
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


@pytest.mark.parametrize("generation", ["qwen2", "qwen3.5", "deepseek"])
def test_packaged_vocabularies_are_found_and_exact(generation: str) -> None:
    file = model_tokenizers.packaged_file(generation)
    assert file is not None
    tokenizer = load(file, generation)

    assert isinstance(tokenizer, BytePairTokenizer)
    assert tokenizer.has_safe_cuts
    assert tokenizer.count("hello world") == 2
    assert model_tokenizers.counted_by(generation) == (generation, "exact")


def test_deepseek_counts_equal_its_tokenizer_json() -> None:
    file = model_tokenizers.packaged_file("deepseek")
    assert file is not None
    fast, library = load(file, "deepseek"), HuggingFaceTokenizer("deepseek", file.read_bytes())

    for text in (SAMPLE, *STOCK):
        assert fast.count(text) == library.count(text)


def test_rank_file_is_not_read_as_tekken(tmp_path: Path) -> None:
    (tmp_path / "p50k.tiktoken").write_bytes(rank_lines(50_280))

    assert load_rank_file(tmp_path / "p50k.tiktoken", "p50k").name == "p50k"
