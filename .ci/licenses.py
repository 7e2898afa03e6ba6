"""List the licenses of a CycloneDX file: `python .ci/licenses.py SBOM`.

Exits with 1 if a component has no license, or if this project does not accept its license for
software that it ships or installs.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ACCEPTED = re.compile(
    r"MIT(-0| License)?|(0|.*)BSD.*|Apache.*|ISC.*|PSF-2\.0|Python-2\.0|"
    r"Python Software Foundation.*|CNRI-Python|MPL-2\.0|Mozilla Public License 2\.0.*|"
    r"Unlicense|Zlib|CC0-1\.0|DFSG approved",
    re.IGNORECASE,
)
"""One license of an expression, or one classifier."""
DECLARED_IN_TEXT = {"tiktoken": "MIT", "squarify": "Apache-2.0", "protobuf": "BSD-3-Clause"}
"""Licenses that cannot be read from the package's metadata, keyed by package."""


def licenses(component: dict[str, Any]) -> str:
    """Return a component's licenses, or "" if it declares none."""
    named = [
        entry.get("expression")
        or entry["license"].get("id")
        or entry["license"]["name"].rpartition(":: ")[2]
        for entry in component.get("licenses", ())
    ]
    return " / ".join(dict.fromkeys(named)) or DECLARED_IN_TEXT.get(component["name"], "")


def is_accepted(named: str) -> bool:
    """Return whether all licenses are accepted. Of alternatives (`OR`), one is enough."""
    return all(
        any(ACCEPTED.fullmatch(one) for one in required.strip("()").split(" OR "))
        for required in re.split(r" / | AND ", named)
    )


def main(path: str) -> int:
    """Print one line for each component."""
    refused = 0
    for component in json.loads(Path(path).read_text("utf-8"))["components"]:
        named = licenses(component)
        verdict = "" if is_accepted(named) else "  NOT ACCEPTED"
        refused += bool(verdict)
        sys.stdout.write(f"{component['name']} {component['version']}: {named}{verdict}\n")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
