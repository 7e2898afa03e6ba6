"""Tests that threads resolve types one at a time, because msgspec would crash otherwise."""

from __future__ import annotations

import subprocess
import sys

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
