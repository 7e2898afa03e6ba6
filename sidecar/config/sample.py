"""Contains the sample configuration. Every line is commented out."""

from __future__ import annotations

_PROJECT = """\
# Project settings for token-sidecar. Values are the defaults unless a comment says otherwise.
# All keys: docs/reference/configuration.md. Settings in effect: token-sidecar config show

# model = "gpt-5"                 # model to count for
# presets = true                  # default: false; budgets for AGENTS.md and similar files

# [context]
# limit = 32768                   # default: unset; lowers a known window or replaces an unknown one
# reserve = 500                   # tokens reserved for the reply
# warn-at = [0.8, 0.95]           # warning at the first, error at the last
# keep-turns = 4                  # recent user turns to keep when pruning

# [[budget]]
# files = "AGENTS.md"             # globs as in .gitignore
# max-tokens = 2000               # info at 90 %, warning above 100 %, error at 200 %

# [[budget]]
# files = "prompts/**/*.md"
# max-tokens = 8000
# sections = { "Context" = 1500 } # per heading, including subsections
"""

_USER = """
# The keys below are read only from this file and the editor's user settings, never from a project.

# [tokenize]
# use-endpoint = true             # default: false; count with the endpoints below
# endpoint-window = true          # default: false; use endpoints only for context windows

# [[endpoint]]
# url = "http://127.0.0.1:8080"   # llama.cpp's default; Ollama's is http://127.0.0.1:11434
# models = ["qwen*"]              # models that the endpoint serves
# api-key-env = "LLAMA_API_KEY"   # environment variable with the key, never the key itself

# [[tokenizer]]
# models = ["llama-3*"]
# file = "~/models/llama-3/tokenizer.json"

# [[price]]                       # USD per million tokens, for models without a known price
# models = ["qwen*"]
# input = 0.0
# output = 0.0

# [cost]
# soft-cap-usd = 5.0              # default: unset; per day; only warns
# hard-cap-usd = 20.0             # default: unset; per day; blocks requests before sending

# [agents]
# enabled = false                 # default: true; read coding agents' session files (counts only)
# labels = "branch"               # how to label untitled sessions; or "first-prompt"
"""


def sample(*, user: bool) -> str:
    """Return a sample configuration with all keys commented out.

    Args:
        user: Whether to include the keys that may be set only in the user's own file.
    """
    if not user:
        return _PROJECT
    return _PROJECT.replace("Project settings", "User settings") + _USER
