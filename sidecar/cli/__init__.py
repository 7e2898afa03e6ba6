"""The command line. Each command's module is imported only when the command runs."""

from sidecar.cli.group import VERBS, main

__all__ = ["VERBS", "main"]
