"""Comments in a file's own syntax, for budget marks. Does no I/O."""

from __future__ import annotations

HTML = ("<!-- ", " -->")
HASH = ("# ", "")
SLASHES = ("// ", "")
DASHES = ("-- ", "")
PERCENT = ("% ", "")
SEMICOLON = ("; ", "")
STARS = ("/* ", " */")
QUOTE = ('" ', "")
DOTS = (".. ", "")
JINJA = ("{# ", " #}")

_BY_STYLE: tuple[tuple[tuple[str, str], str], ...] = (
    (
        HTML,
        "markdown md mdx mdc mdown mkd qmd rmd prompty prompt instructions skill chatagent html",
    ),
    (HTML, "htm xml svg xhtml xsl vue svelte astro txt text plaintext"),
    (
        HASH,
        "python py pyi pyx ruby rb rake shellscript sh bash zsh fish yaml yml toml perl pl pm r",
    ),
    (HASH, "dockerfile makefile mk cmake julia jl elixir ex exs nix terraform tf hcl powershell"),
    (
        HASH,
        "ps1 graphql gql conf cfg env properties gitignore editorconfig coffeescript coffee awk",
    ),
    (
        SLASHES,
        "javascript js mjs cjs jsx javascriptreact typescript ts mts cts tsx typescriptreact",
    ),
    (
        SLASHES,
        "c h cpp cc cxx hpp hh java kotlin kt kts scala go rust rs swift csharp cs fsharp fs",
    ),
    (SLASHES, "php dart jsonc json5 scss less sass proto groovy gradle zig solidity sol v sv d"),
    (DASHES, "lua sql haskell hs elm ada adb ads vhdl vhd applescript"),
    (PERCENT, "latex tex bibtex bib erlang erl hrl matlab prolog"),
    (SEMICOLON, "lisp el cl clojure clj cljs scheme scm racket rkt asm s ini autohotkey ahk"),
    (STARS, "css"),
    (QUOTE, "viml vim"),
    (DOTS, "restructuredtext rst"),
    (JINJA, "jinja jinja-html j2 jinja2 twig nunjucks njk"),
)
_STYLES = {name: style for style, names in _BY_STYLE for name in names.split()}


def comment(words: str, name: str, language_id: str = "") -> str | None:
    """Return `words` as a comment in a file of that name or language, or None if it has no
    comments."""
    base = name.rpartition("/")[2].lower().lstrip(".")
    known = (language_id.lower(), base.rpartition(".")[2], base)
    style = next((_STYLES[key] for key in known if key in _STYLES), None)
    return None if style is None else f"{style[0]}{words}{style[1]}"
