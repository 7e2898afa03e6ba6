"""Tests that other programs' JSON is decoded, and that threads resolve types one at a time.

msgspec would crash otherwise.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Annotated, Any

import msgspec
import pytest

from sidecar import typed

FIRST_USES = '''
"""Four threads use a new type at the same time, 400 times."""
import sys
import threading
import types
from sidecar import typed

sys.setswitchinterval(1e-6)
SOURCE = """
from __future__ import annotations
import msgspec
class Inner(msgspec.Struct):
    number: int | None = None
    texts: list[dict[str, str]] | None = None
class Middle(msgspec.Struct):
    inner: Inner | None = None
    inners: list[Inner] | None = None
class Outer(msgspec.Struct):
    middle: Middle | None = None
    by_name: dict[str, Middle] | None = None
"""
VALUE = {"middle": {"inner": {"number": 1}, "inners": [{"texts": [{}]}]}, "by_name": {"a": {}}}


def use(start, kinds, convert):
    start.wait()
    for kind in kinds:
        convert(VALUE if kind.__name__ == "Outer" else VALUE["middle"], kind)


convert = getattr(__import__(sys.argv[1], fromlist=["convert"]), "convert")
for number in range(400):
    module = types.ModuleType(f"made_{number}")
    sys.modules[module.__name__] = module
    exec(SOURCE, module.__dict__)
    start = threading.Barrier(4)
    orders = ([module.Outer], [module.Middle, module.Outer])
    threads = [
        threading.Thread(target=use, args=(start, orders[n % 2], convert)) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("whole")
'''


def test_several_threads_may_use_a_type_for_the_first_time() -> None:
    """With `msgspec.convert`, the process would crash with a segmentation fault."""
    command = [sys.executable, "-c", FIRST_USES, "sidecar.typed"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "whole\n", "")


class Tokens(msgspec.Struct, rename="camel"):
    in_tokens: Annotated[int, msgspec.Meta(ge=0, le=1000)] | None = None
    cost: float | None = None


class Call(msgspec.Struct):
    id: str | None = None
    tokens: Tokens | None = None
    steps: list[Tokens] | None = None
    slots: list[Tokens | None] = []
    by_name: dict[str, Tokens] = {}
    at: float | str | None = None
    is_done: bool | None = None
    number: int = 3


REPLACED = "\N{REPLACEMENT CHARACTER}"
STRINGS = [
    (rb"a\ud82db", f"a{REPLACED}b"),
    (rb"\uDE00", REPLACED),
    (rb"\ud83d\ud83d\ude00", f"{REPLACED}\U0001f600"),
    (rb"\uD83D\uDE00\uDE00\uD83D", f"\U0001f600{REPLACED}{REPLACED}"),
    (rb"\ud83d\n\ude00", f"{REPLACED}\n{REPLACED}"),
    (rb"\\ud82d \ud82d", rf"\ud82d {REPLACED}"),
    (rb"\\\ud82d", f"\\{REPLACED}"),
    (rb"\\\\ud82d\udbff\"", rf'\\ud82d{REPLACED}"'),
    (b"\xed\xa0\xbd", REPLACED * 3),
    (b"caf\xe9 \xf0\x9f\x98", f"caf{REPLACED} {REPLACED}"),
    (b"tab\there", "tab here"),
]


@pytest.mark.parametrize(("written", "text"), STRINGS)
def test_half_a_character_is_replaced(written: bytes, text: str) -> None:
    data = b'{"id":"' + written + b'","other":["' + written + b'"],"' + written + b'":1}'
    assert typed.decode(data, Call).id == text
    assert typed.decoder(Call)(data).id == text
    assert typed.decode(data, dict[str, Any]) == {"id": text, "other": [text], text: 1}
    raw = typed.decode(data, dict[str, msgspec.Raw])["id"]
    assert typed.decode(raw, str) == text


def test_half_a_character_in_a_string_is_replaced() -> None:
    assert typed.decode('{"id":"\ud82d"}', Call).id == REPLACED * 3


def test_constants_of_python_are_null() -> None:
    data = b'\xef\xbb\xbf{"id":"NaN -Infinity \\"NaN","tokens":{"cost":NaN},"at":-Infinity}'
    assert typed.decode(data, Call) == Call('NaN -Infinity "NaN', Tokens())


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"",
            b"{",
            b'{"id":"\\ud82d',
            b'{"id":"\\ud8"}',
            b'{"id":"\xff"}{',
            b'{"id":NaN',
            b"\0{}",
        ),
        pytest.param(b'{"unknown":' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="deep"),
    ],
)
def test_text_that_is_not_json_is_still_rejected(data: bytes) -> None:
    for decode in (typed.decoder(Call), partial(typed.decode, kind=Call)):
        with pytest.raises(msgspec.DecodeError) as caught:
            decode(data)
        assert not isinstance(caught.value, msgspec.ValidationError)


@pytest.mark.parametrize(
    ("data", "call", "losses"),
    [
        (b'{"id":7,"number":10.0,"at":true}', Call("7", number=10), 1),
        (b'{"id":12345678901234567890,"number":"10"}', Call("12345678901234567890", number=10), 0),
        (b'{"id":{"a":1},"number":null,"is_done":"no?"}', Call(), 1),
        (b'{"tokens":{"inTokens":10.0,"cost":"1.5"}}', Call(tokens=Tokens(10, 1.5)), 0),
        (b'{"tokens":{"inTokens":-1,"cost":{}},"id":"a"}', Call("a", Tokens()), 1),
        (b'{"tokens":{"inTokens":"1e2","cost":1}}', Call(tokens=Tokens(100, 1)), 0),
        (b'{"tokens":{"inTokens":"nan","cost":"x"}}', Call(tokens=Tokens()), 1),
        (b'{"tokens":[1],"id":"a"}', Call("a"), 1),
        (b'{"steps":[{"inTokens":1},3,{"cost":[]}]}', Call(steps=[Tokens(1), Tokens()]), 1),
        (b'{"slots":[{"inTokens":1},3,null]}', Call(slots=[Tokens(1), None, None]), 1),
        (b'{"by_name":{"a":{"cost":"2"},"b":[]}}', Call(by_name={"a": Tokens(cost=2)}), 1),
        (b'{"at":[],"id":"\\ud800"}', Call(REPLACED), 1),
        (b'{"id":3,"other":"\\udfff"}', Call("3"), 0),
    ],
)
def test_member_of_another_type_does_not_affect_others(
    data: bytes, call: Call, losses: int
) -> None:
    counted: list[None] = []
    assert typed.decoder(Call)(data, lambda: counted.append(None)) == call
    assert len(counted) == losses
    assert typed.decode_leniently(data, Call) == call


def test_strict_decoding_still_rejects_a_member_of_another_type() -> None:
    with pytest.raises(msgspec.ValidationError):
        typed.decode(b'{"id":7}', Call)
    with pytest.raises(msgspec.ValidationError):
        typed.decode_leniently(b'["id"]', Call)
