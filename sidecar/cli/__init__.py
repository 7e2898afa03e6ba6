"""The command line. The module of a command is only imported when the command runs."""

from sidecar.cli.group import VERBS, main

__all__ = ["VERBS", "main"]
