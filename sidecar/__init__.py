"""token-sidecar: token counts, context usage and cost beside the editor."""

__version__ = "0.1.0"
