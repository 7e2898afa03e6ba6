"""A configuration to begin with: every line a comment, so that writing it changes nothing."""

from __future__ import annotations

_PROJECT = """\
# token-sidecar: settings of this project. A value is the default, or its comment names that.
# All keys: docs/reference/configuration.md; what is in force: token-sidecar config show

# model = "gpt-5"                 # whose tokens are counted
# presets = true                  # default: false; budgets for AGENTS.md and its like

# [context]
# limit = 32768                   # default: unset; caps a known window, else is the window
# reserve = 500                   # tokens kept free for the reply
# warn-at = [0.8, 0.95]           # a warning from the first, an error from the last
# keep-turns = 4                  # user turns that pruning leaves alone

# [[budget]]
# files = "AGENTS.md"             # globs as in .gitignore
# max-tokens = 2000               # a hint from 90 %, a warning when over, an error at twice

# [[budget]]
# files = "prompts/**/*.md"
# max-tokens = 8000
# sections = { "Context" = 1500 } # a heading with all below it
"""

_USER = """
# What follows is read from this file and the editor's user settings only, never from a project.

# [tokenize]
# use-endpoint = true             # default: false; let the model servers below count
# endpoint-window = true          # default: false; ask them for the model's window, only that

# [[endpoint]]
# url = "http://127.0.0.1:8080"   # llama.cpp's default; Ollama's is http://127.0.0.1:11434
# models = ["qwen*"]              # which models it serves
# api-key-env = "LLAMA_API_KEY"   # the variable that holds its key, never the key

# [[tokenizer]]
# models = ["llama-3*"]
# file = "~/models/llama-3/tokenizer.json"

# [[price]]                       # USD a million tokens, for models that no list prices
# models = ["qwen*"]
# input = 0.0
# output = 0.0

# [cost]
# soft-cap-usd = 5.0              # default: unset; a day: a warning
# hard-cap-usd = 20.0             # default: unset; a day: a refusal before sending

# [agents]
# enabled = false                 # default: true; read coding agents' session files (counts)
"""


def sample(*, user: bool) -> str:
    """The text of a configuration file, every key commented out.

    `user`: for the user's own file, with the keys that no project may have.
    """
    if not user:
        return _PROJECT
    return _PROJECT.replace("settings of this project", "your own settings") + _USER
