"""`token-sidecar fit`: a file, shortened to a number of tokens."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sidecar.counting.count import Tokenizer


@click.command()
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--max-tokens", type=click.IntRange(min=0), required=True, help="Tokens that may be left."
)
@click.option(
    "--mode",
    type=click.Choice(["start", "middle", "end"]),
    default="middle",
    show_default=True,
    help="What is kept: the beginning, both ends, or the end.",
)
@click.option("--model", help="Count for this model; default: the setting `model`.")
@click.option(
    "--marker", default="\n...\n", help="What stands for the part left out of the middle."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def fit(
    file: Path, max_tokens: int, mode: str, model: str | None, marker: str, as_json: bool
) -> None:
    """Print FILE (`-`: standard input) in at most so many tokens; FILE itself is not changed.

    Exits 0; 2 where FILE cannot be read or is no text.
    """
    from sidecar.counting import fit as fitting

    text = _read(file)
    name, tokenizer = _tokenizer(file, model)
    fitted = fitting.fit(text, max_tokens, fitting.mode_of(mode), tokenizer, marker)
    if not as_json:
        sys.stdout.buffer.write(fitted.text.encode("utf-8", "surrogateescape"))
        sys.stdout.buffer.flush()
        return
    import msgspec

    how = {
        "model": name,
        "method": tokenizer.method,
        "tokenizer": tokenizer.name,
        "errorPercent": tokenizer.error_percent,
    }
    printable = msgspec.structs.replace(fitted, text=_printable(fitted.text))
    click.echo(msgspec.json.encode(msgspec.to_builtins(printable) | how).decode())


def _read(file: Path) -> str:
    """The text with its line ends as they are; bytes that are no UTF-8 pass through unchanged."""
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise click.UsageError(f"cannot read {file}: {error.strerror}") from error
    if b"\0" in data[:8192]:
        raise click.UsageError(f"{file} is a binary file; fit works on text")
    return data.decode("utf-8", "surrogateescape")


def _printable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _tokenizer(file: Path, model: str | None) -> tuple[str, Tokenizer]:
    from sidecar.config.load import find_root, load
    from sidecar.counting.tokenizers import Tokenizers

    settings = load(find_root(Path.cwd() if str(file) == "-" else file.absolute())).settings
    name = model or settings.model
    tokenizer = Tokenizers(settings.tokenizers, settings.tokenize.estimator).for_model(name)
    tokenizer.count("a")  # a vocabulary from a file says only now how it really counts
    return name, tokenizer
