"""Whether the model that a server has loaded is the one asked for."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_QUANTISED = re.compile(
    r"[-._](?:(?:ud-)?i?q\d(?:_[0-9a-z]+)*|bf16|f16|f32|fp16|fp8|mxfp4(?:_moe)?|awq|gptq|[48]bit)$"
)


def same_model(asked: str, loaded: str) -> bool:
    """Whether both name one model, so far as its tokens go.

    Case, folder or provider, `.gguf`, shard, quantisation and `:latest` make no difference.
    """
    return bool(_forms(asked) & _forms(loaded))


def matches(model: str, globs: tuple[str, ...]) -> bool:
    """Whether one of an endpoint's globs names the model, with its provider or without."""
    names = (model.lower(), model.lower().rpartition("/")[2])
    return any(fnmatchcase(name, glob.lower()) for name in names for glob in globs)


def _forms(name: str) -> set[str]:
    full = name.strip().lower().replace("\\", "/")
    return {_bare(full), _bare(full.rpartition("/")[2])} - {""}


def _bare(name: str) -> str:
    name = name.removesuffix(":latest").removesuffix(".gguf")
    name = _SHARD.sub("", name)
    while (shorter := _QUANTISED.sub("", name)) != name:
        name = shorter
    return name
