"""Tests token counts of pictures, clips and tool prompts against examples in the vendors' docs.

Also tests the margins of error.
"""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.counting.message_tokens import (
    FILE_TOKENS,
    LARGEST_WINDOW,
    UncertainTokens,
    clip_tokens,
    count_messages,
    count_tools,
    image_tokens,
)
from sidecar.counting.tokenizer_choice import Tokenizers
from sidecar.messages import media
from sidecar.messages.media import Clip, clip_of
from sidecar.messages.messages import read_message
from sidecar.models.names import generation_of
from tests.cases import read_cases, read_rows

TOKENIZERS = Tokenizers()


def seen(model: str, size: tuple[int, int] | None, detail: str = "auto") -> UncertainTokens:
    return image_tokens(model, generation_of(model), size, detail)


Picture = tuple[str, tuple[int, int], str, int]


@pytest.mark.parametrize("case", read_cases("picture_tokens", Picture))
def test_picture_tokens_equal_the_vendors_published_numbers(case: Picture) -> None:
    model, size, detail, tokens = case
    assert seen(model, size, detail).tokens == tokens


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.sampled_from(["low", "high"]))
def test_picture_never_exceeds_its_patch_budget(width: int, height: int, detail: str) -> None:
    assert seen("gpt-5.4", (width, height), "high").tokens <= 3000
    assert seen("gpt-5.5", (width, height), "auto").tokens <= 12000
    assert 1 <= seen("o4-mini", (width, height), detail).tokens <= 2642
    assert 1 <= seen("claude-haiku-4-5", (width, height)).tokens <= 1568
    assert 1 <= seen("claude-opus-5", (width, height)).tokens <= 4784


@given(st.integers(1, 2**31), st.integers(1, 2**31))
def test_picture_with_a_damaged_header_never_exceeds_the_window(width: int, height: int) -> None:
    for model in ("gpt-4o", "gpt-6-astra", "claude-opus-5", "gemini-2.5-pro", "gemini-3-pro"):
        assert 1 <= seen(model, (width, height)).tokens <= LARGEST_WINDOW
    assert seen("gemini-2.5-pro", (2**31, 1)).tokens == LARGEST_WINDOW


@pytest.mark.parametrize("model", ["gemini-2.5-pro", "gpt-4o-audio-preview", "claude-opus-5"])
def test_clip_with_a_damaged_header_never_exceeds_the_window(model: str) -> None:
    video = {"inlineData": {"mimeType": "video/mp4", "data": mp4(2**50, version=1)}}
    clips = (clip_of(video), Clip("audio", 1e15), Clip("document", None, pages=100_000))
    for clip in clips:
        found = clip_tokens(model, generation_of(model), clip)
        assert 1 <= found.tokens <= LARGEST_WINDOW
        assert found.margin <= LARGEST_WINDOW


def test_only_unpublished_rules_have_a_margin() -> None:
    size = (1600, 900)
    assert seen("gpt-6-astra", size).margin == seen("claude-opus-4-8", size).margin == 0
    unlisted, nearest = seen("gpt-6-sol", size), seen("gpt-6-astra", size)
    assert unlisted.tokens == nearest.tokens
    assert 0 < unlisted.margin < unlisted.tokens
    unpublished = seen("some-open-model", size)
    assert unpublished.margin > unpublished.tokens


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-5.4", "claude-opus-5", "gemini-2.5-pro"])
@pytest.mark.parametrize("size", [(256, 256), (640, 480), (1920, 1080), (3840, 2160)])
def test_margin_of_an_unknown_size_covers_usual_sizes(model: str, size: tuple[int, int]) -> None:
    unknown = seen(model, None)
    assert abs(seen(model, size).tokens - unknown.tokens) <= unknown.margin


def test_margin_of_a_picture_widens_the_band() -> None:
    def error(model: str, url: str) -> float:
        block = {"type": "image_url", "image_url": {"url": url}}
        messages = [{"role": "user", "content": [{"type": "text", "text": "word " * 500}, block]}]
        measure = count_messages(messages, None, model, TOKENIZERS.for_model(model))
        assert measure.error_percent is not None
        return measure.error_percent

    data = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + struct.pack(">II", 1024, 1024)
    known = "data:image/png;base64," + base64.b64encode(data + bytes(32)).decode()
    assert error("gpt-4o", known) < 1
    assert error("gpt-4o", "https://example.org/a.png") > 25


def wav(seconds: float, rate: int = 8_000) -> str:
    data = bytes(int(seconds * rate))
    form = b"fmt " + struct.pack("<IHHIIHH", 16, 1, 1, rate, rate, 1, 8)
    body = b"WAVE" + form + b"data" + struct.pack("<I", len(data)) + data
    return base64.b64encode(b"RIFF" + struct.pack("<I", len(body)) + body).decode()


def mp4(seconds: int, version: int = 0, before: int = 0) -> str:
    times = struct.pack(">QQIQ", 0, 0, 1_000, seconds * 1_000) if version else (
        struct.pack(">IIII", 0, 0, 1_000, seconds * 1_000))  # fmt: skip
    head = struct.pack(">I", 24) + b"ftypisom" + bytes(12)
    moov = bytes(4) + b"moov" + bytes(4) + b"mvhd" + bytes([version, 0, 0, 0]) + times
    return base64.b64encode(head + bytes(before) + moov + bytes(90)).decode()


def mp3(seconds: int, kbps_index: int = 9) -> str:
    tag = b"ID3\x04\0\0" + bytes([0, 0, 1, 0]) + bytes(128)
    frames = bytes([0xFF, 0xFB, kbps_index << 4, 0]) + bytes(128 * 125 * seconds - 4)
    return base64.b64encode(tag + frames).decode()


def inline(mime: str, data: str, **more: Any) -> dict[str, Any]:
    return {"inlineData": {"mimeType": mime, "data": data}} | more


@pytest.mark.parametrize(
    ("block", "media", "seconds"),
    [
        ({"type": "input_audio", "input_audio": {"data": wav(3), "format": "wav"}}, "audio", 3),
        (inline("audio/wav", wav(2.5)), "audio", 2.5),
        (inline("audio/mpeg", mp3(20)), "audio", 20),
        (inline("video/mp4", mp4(60)), "video", 60),
        (inline("video/mp4", mp4(60, 1)), "video", 60),
        (inline("video/mp4", mp4(60, before=900_000)), "video", 60),
        (inline("video/mp4", mp4(60), videoMetadata={"endOffset": "15s"}), "video", 15),
        (inline("video/mp4", mp4(60), videoMetadata={"startOffset": "15s"}), "video", 45),
        (
            inline("video/mp4", mp4(60), videoMetadata={"startOffset": "9s", "endOffset": "5s"}),
            "video",
            None,
        ),
        (
            {
                "fileData": {"mimeType": "video/mp4", "fileUri": "https://example.org/v"},
                "videoMetadata": {"startOffset": "10s", "endOffset": "40.5s"},
            },
            "video",
            30.5,
        ),
        ({"fileData": {"mimeType": "audio/ogg", "fileUri": "https://e.org/a"}}, "audio", None),
        (inline("application/pdf", "JVBERi0="), "document", None),
        (inline("audio/wav", "UklGRg=="), "audio", None),
    ],
)
def test_clip_length_is_read_from_the_data(
    block: dict[str, Any], media: str, seconds: float | None
) -> None:
    (read,) = read_message({"role": "user", "content": [block]}).blocks
    assert read.kind == "file"
    assert (read.clip.media, read.clip.seconds) == (media, seconds)


@pytest.mark.parametrize(
    "metadata",
    [
        {"endOffset": "9" * 400 + "s"},
        {"endOffset": 10**400},
        {"endOffset": -1},
        {"fps": 10**400},
        {"fps": 1e308},
    ],
)
def test_impossible_video_metadata_is_ignored(metadata: dict[str, Any]) -> None:
    block = inline("video/mp4", mp4(60), videoMetadata=metadata)
    message = {"role": "user", "content": [block]}
    model = "gemini-2.5-flash"
    tokens = count_messages([message], None, model, TOKENIZERS.for_model(model)).tokens
    assert clip_of(block) == Clip("video", 60.0)
    assert tokens >= 60 * (258 + 32)


@given(st.one_of(st.binary().map(lambda b: base64.b64encode(b).decode()), st.text()))
def test_clip_of_never_raises(data: str) -> None:
    clip = clip_of(inline("audio/wav", data))
    assert clip.seconds is None or clip.seconds > 0


@pytest.mark.parametrize(
    ("model", "block", "tokens"),
    [
        # From Google's page "Media resolution": tokens per second of audio and per video frame.
        ("gemini-3.8-flash", inline("audio/wav", wav(10)), 250),
        ("gemini-2.5-flash", inline("audio/wav", wav(10)), 320),
        ("gemini-3.8-flash", inline("video/mp4", mp4(60)), 60 * (70 + 25)),
        ("gemini-2.5-flash", inline("video/mp4", mp4(60)), 60 * (258 + 32)),
        (
            "gemini-3.8-flash",
            inline("video/mp4", mp4(60), mediaResolution={"level": "MEDIA_RESOLUTION_HIGH"}),
            60 * (280 + 25),
        ),
        ("gemini-3.8-flash", inline("video/mp4", mp4(60), videoMetadata={"fps": 2}), 60 * 165),
        # From OpenAI's page "Managing costs": one token per 100 ms of a user's audio.
        ("gpt-audio", {"type": "input_audio", "input_audio": {"data": wav(10)}}, 100),
        ("gpt-audio", inline("application/pdf", "JVBERi0="), FILE_TOKENS),
    ],
)
def test_clip_tokens_equal_the_vendors_published_numbers(
    model: str, block: dict[str, Any], tokens: int
) -> None:
    def tokens_of(content: list[Any]) -> int:
        message = [{"role": "user", "content": content}]
        return count_messages(message, None, model, TOKENIZERS.for_model(model)).tokens

    assert tokens_of([block]) - tokens_of([]) == tokens


def pdf(pages: int, *, packed: bool = False, nested: bool = False) -> str:
    """Return a PDF whose page tree is in plain objects or in a compressed object stream."""
    kids = " ".join(f"{n + 10} 0 R" for n in range(pages))
    objects = [b"<< /Type /Catalog /Pages 2 0 R /Outlines << /Count 900 >> >>"]
    inner = "/Resources << /Font << /F1 9 0 R >> /ID [<AB12> <CD>] /Count 77 >>"
    objects += [f"<< /Type /Pages {inner} /Kids [{kids}] /Count {pages} >>".encode()]
    if nested:
        objects += [f"<</Count {pages - 1}/Kids[4 0 R]/Parent 2 0 R/Type/Pages>>".encode()]
    if packed:
        data = zlib.compress(b"1 0 2 60 " + b" ".join(objects))
        head = f"5 0 obj\n<< /Type /ObjStm /N 2 /First 9 /Length {len(data)} >>\nstream\n"
        body = head.encode() + data + b"\nendstream\nendobj\n"
    else:
        body = b"".join(b"%d 0 obj\n%s\nendobj\n" % (n, one) for n, one in enumerate(objects, 1))
    return base64.b64encode(b"%PDF-1.7\n" + body + b"%%EOF").decode()


PDF = "application/pdf"


@pytest.mark.parametrize(
    ("data", "pages"),
    [
        (pdf(1), 1),
        (pdf(12), 12),
        (pdf(12, nested=True), 12),
        (pdf(7, packed=True), 7),
        (pdf(3_000), 3_000),  # 24 KB of page references are between `/Type` and `/Count`
        ("data:application/pdf;base64," + pdf(3), 3),
        (base64.b64encode(b"%PDF-1.4\n1 0 obj<</Linearized 1/L 9/N 44/T 1>>endobj").decode(), 44),
        (base64.b64encode(b"<< /Type /Pages /Count 9 >>").decode(), None),  # not a PDF
        ("JVBERi0=", None),
        (pdf(0), None),
        (base64.b64encode(b"%PDF-1.7\n<</Type/Pages/Count 99999999999>>").decode(), None),
        (base64.b64encode(b"%PDF /Type /ObjStm stream\nno zlib at all endstream").decode(), None),
    ],
)
def test_page_count_of_a_pdf(data: str, pages: int | None) -> None:
    (read,) = read_message({"role": "user", "content": [inline(PDF, data)]}).blocks
    assert (read.clip.media, read.clip.pages) == ("document", pages)


@given(st.binary().map(lambda b: base64.b64encode(b"%PDF-1.7 " + b).decode()))
def test_page_count_never_raises(data: str) -> None:
    pages = clip_of(inline(PDF, data)).pages
    assert pages is None or pages > 0


@pytest.mark.parametrize(("model", "least", "tokens", "most"), read_rows("counting", "page_tokens"))
def test_page_tokens_equal_the_vendors_published_numbers(
    model: str, least: int, tokens: int, most: int
) -> None:
    one, ten = (
        clip_tokens(model, generation_of(model), Clip("document", None, pages=n)) for n in (1, 10)
    )
    assert (one.tokens, ten.tokens) == (tokens, 10 * tokens)
    assert one.tokens - one.margin <= least
    assert one.tokens + one.margin >= most


def test_openai_page_counts_its_text_and_picture() -> None:
    """OpenAI does not publish the size of a page's picture, so the margin is 100 %."""
    page = clip_tokens("gpt-5", "o200k_base", Clip("document", None, pages=1))
    assert page.margin == page.tokens > 1_000
    low = clip_tokens(
        "gemini-3.8-flash", "gemma", Clip("document", None, pages=2), "MEDIA_RESOLUTION_LOW"
    )
    assert low.tokens == 2 * 280


@pytest.mark.parametrize(("model", "tokens"), read_rows("counting", "tool_prompts"))
def test_tools_add_the_vendors_published_prompt(model: str, tokens: int) -> None:
    tool = {"name": "get_time", "description": "The time.", "input_schema": {"type": "object"}}
    tokenizer = TOKENIZERS.for_model(model)
    one, two = (count_tools([tool] * n, model, tokenizer).tokens for n in (1, 2))
    assert one - (two - one) == tokens


def test_unpublished_tool_prompt_has_a_wide_margin() -> None:
    tool = {"name": "get_time", "description": "The time.", "input_schema": {"type": "object"}}

    def error(model: str) -> float:
        measure = count_tools([tool], model, TOKENIZERS.for_model(model))
        assert measure.error_percent is not None
        return measure.error_percent

    assert error("claude-fable-5-2") > error("claude-opus-4-8") > 0


@pytest.mark.parametrize("packed", [False, True])
def test_only_part_of_a_huge_page_tree_is_read(
    monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    looked: list[int] = []

    def counted(part: bytes) -> bytes:
        looked.append(len(part))
        return part

    monkeypatch.setattr(media, "_without_inner", counted)
    trees = b"<</Type /Pages >> " * 50_000
    stream = b"/Type /ObjStm stream\n" + zlib.compress(trees) + b"\n"
    body = stream * 64 if packed else trees
    assert media.pages_in((b"%PDF-1.7\n" + body, body)) is None
    assert 0 < len(looked) <= 4 * 256
