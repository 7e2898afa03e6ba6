"""Contains the sample configuration, in which every line is commented out."""

from __future__ import annotations

_PROJECT = """\
# token-sidecar: settings of this project. Values are the defaults unless a comment says otherwise.
# All keys: docs/reference/configuration.md; what is in force: token-sidecar config show

# model = "gpt-5"                 # model to count for
# presets = true                  # default: false; budgets for AGENTS.md and similar files

# [context]
# limit = 32768                   # default: unset; lowers a known window, replaces an unknown one
# reserve = 500                   # tokens reserved for the reply
# warn-at = [0.8, 0.95]           # a warning from the first, an error from the last
# keep-turns = 4                  # recent user turns that pruning keeps

# [[budget]]
# files = "AGENTS.md"             # globs as in .gitignore
# max-tokens = 2000               # information from 90 %, warning when exceeded, error at twice

# [[budget]]
# files = "prompts/**/*.md"
# max-tokens = 8000
# sections = { "Context" = 1500 } # per heading, subsections included
"""

_USER = """
# The keys below are read from this file and the editor's user settings only, never from a project.

# [tokenize]
# use-endpoint = true             # default: false; let the endpoints below count
# endpoint-window = true          # default: false; ask them for the context window only

# [[endpoint]]
# url = "http://127.0.0.1:8080"   # llama.cpp's default; Ollama's is http://127.0.0.1:11434
# models = ["qwen*"]              # models it serves
# api-key-env = "LLAMA_API_KEY"   # environment variable with the key, never the key itself

# [[tokenizer]]
# models = ["llama-3*"]
# file = "~/models/llama-3/tokenizer.json"

# [[price]]                       # USD per million tokens, for models without a known price
# models = ["qwen*"]
# input = 0.0
# output = 0.0

# [cost]
# soft-cap-usd = 5.0              # default: unset; per day, warns
# hard-cap-usd = 20.0             # default: unset; per day, refuses before sending

# [agents]
# enabled = false                 # default: true; read coding agents' session files (counts only)
# labels = "branch"               # names of sessions without a title; or "first-prompt"
"""


def sample(*, user: bool) -> str:
    """Return a sample configuration with all keys commented out.

    Args:
        user: Whether to include the keys that may be set only in the user's own file.
    """
    if not user:
        return _PROJECT
    return _PROJECT.replace("settings of this project", "your own settings") + _USER
