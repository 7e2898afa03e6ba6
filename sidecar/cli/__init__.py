"""The command line. Each command has a module, which is imported when the command runs."""

from sidecar.cli.group import VERBS, main

__all__ = ["VERBS", "main"]
