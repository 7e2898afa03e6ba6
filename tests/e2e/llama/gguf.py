"""Writes a tiny llama model with random weights and a real vocabulary to a GGUF file.

The format is described at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import itertools
import mmap
import random
import struct
from pathlib import Path
from typing import Any, BinaryIO

EMBEDDING, HEADS, FEED_FORWARD, LAYERS = 32, 2, 64, 1
F32 = 0
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, UINT32: 4, INT32: 4, FLOAT32: 4, BOOL: 1, 10: 8, 11: 8, 12: 8}
_POOL = 4096  # the number of random rows per tensor (larger tensors repeat them)

CHATML = (
    "{%- if tools %}{{- '<|im_start|>system\n# Tools\n' }}{%- for tool in tools %}"
    "{{- tool | tojson }}{{- '\n' }}{%- endfor %}{{- '<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\n' "
    "+ (message['content'] or '') + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


def write_model(
    path: Path,
    vocabulary: Path,
    context: int = 8192,
    name: str = "tiny",
    template: str = CHATML,
) -> None:
    """Write a model that uses the vocabulary in a GGUF file.

    Args:
        context: The context window that the model was trained with, in tokens.
        template: The chat template. We know how many tokens the default (ChatML) adds.
    """
    tokenizer, tokens = _tokenizer_of(vocabulary)
    metadata = [*_metadata(context, name, template), *tokenizer]
    tensors = _tensors(tokens)
    infos, offset = b"", 0
    for tensor, dimensions in tensors:
        infos += _string(tensor) + struct.pack("<I", len(dimensions))
        infos += struct.pack(f"<{len(dimensions)}QIQ", *dimensions, F32, offset)
        offset += _padded(4 * _volume(dimensions))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(metadata) + infos
    with path.open("wb") as file:
        file.write(head + b"\0" * (-len(head) % 32))
        for _, dimensions in tensors:
            _write_weights(file, dimensions)


def _metadata(context: int, name: str, template: str) -> list[bytes]:
    head = EMBEDDING // HEADS
    numbers = {
        "context_length": context,
        "embedding_length": EMBEDDING,
        "block_count": LAYERS,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS,
        "rope.dimension_count": head,
    }
    return [
        _entry("general.architecture", STRING, _string("llama")),
        _entry("general.name", STRING, _string(name)),
        *(_entry(f"llama.{key}", UINT32, struct.pack("<I", n)) for key, n in numbers.items()),
        _entry("llama.attention.layer_norm_rms_epsilon", FLOAT32, struct.pack("<f", 1e-5)),
        _entry("tokenizer.chat_template", STRING, _string(template)),
    ]


def _tensors(tokens: int) -> list[tuple[str, tuple[int, ...]]]:
    tensors: list[tuple[str, tuple[int, ...]]] = [
        ("token_embd.weight", (EMBEDDING, tokens)),
        ("output_norm.weight", (EMBEDDING,)),
    ]
    square = (EMBEDDING, EMBEDDING)
    for block in range(LAYERS):
        prefix = f"blk.{block}."
        tensors += [(f"{prefix}{part}_norm.weight", (EMBEDDING,)) for part in ("attn", "ffn")]
        tensors += [(f"{prefix}attn_{part}.weight", square) for part in ("q", "k", "v", "output")]
        tensors += [(f"{prefix}ffn_{p}.weight", (EMBEDDING, FEED_FORWARD)) for p in ("gate", "up")]
        tensors += [(f"{prefix}ffn_down.weight", (FEED_FORWARD, EMBEDDING))]
    return tensors


def _write_weights(file: BinaryIO, dimensions: tuple[int, ...]) -> None:
    width, rows = dimensions[0], _volume(dimensions[1:])
    if len(dimensions) == 1:
        file.write(struct.pack(f"<{width}f", *itertools.repeat(1.0, width)))
    else:
        source = random.Random(width)
        row = struct.Struct(f"<{width}f")
        pool = [row.pack(*(source.uniform(-0.1, 0.1) for _ in range(width))) for _ in range(_POOL)]
        file.writelines(pool[n % _POOL] for n in range(rows))
    size = 4 * _volume(dimensions)
    file.write(b"\0" * (_padded(size) - size))


def _tokenizer_of(vocabulary: Path) -> tuple[list[bytes], int]:
    """Return the `tokenizer.*` entries of a GGUF file, and the number of tokens in its vocabulary.

    The chat template is left out.
    """
    with (
        vocabulary.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        entries, tokens = [], 0
        (count,) = struct.unpack_from("<Q", data, 16)
        position = 24
        for _ in range(count):
            start = position
            key, position = _read_string(data, position)
            (kind,) = struct.unpack_from("<I", data, position)
            if key == "tokenizer.ggml.tokens":
                (tokens,) = struct.unpack_from("<Q", data, position + 8)
            position = _skip(data, position + 4, kind)
            if key.startswith("tokenizer.") and key != "tokenizer.chat_template":
                entries.append(data[start:position])
    return entries, tokens


def _skip(data: Any, position: int, kind: int) -> int:
    """Return the end position of the value of type `kind` that starts at `position`."""
    if kind == STRING:
        return _read_string(data, position)[1]
    if kind != ARRAY:
        return position + _SIZES[kind]
    inner, count = struct.unpack_from("<IQ", data, position)
    position += 12
    if inner != STRING:
        return position + int(count) * _SIZES[inner]
    for _ in range(count):
        (length,) = struct.unpack_from("<Q", data, position)
        position += 8 + length
    return position


def _read_string(data: Any, position: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, position)
    end = position + 8 + length
    return bytes(data[position + 8 : end]).decode("utf-8", "replace"), end


def _entry(key: str, kind: int, value: bytes) -> bytes:
    return _string(key) + struct.pack("<I", kind) + value


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _volume(dimensions: tuple[int, ...]) -> int:
    volume = 1
    for dimension in dimensions:
        volume *= dimension
    return volume


def _padded(size: int) -> int:
    return size + -size % 32
