"""token-sidecar: token counts, context usage and costs in your editor."""

__version__ = "0.1.0"
