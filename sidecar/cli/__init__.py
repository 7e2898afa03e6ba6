"""The command line: one module for each command, imported only when that command runs."""

from sidecar.cli.group import VERBS, main

__all__ = ["VERBS", "main"]
