"""``python -P -m sidecar``: the same as the console script ``token-sidecar``."""

from sidecar.cli import main

main()
