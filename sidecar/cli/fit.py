"""`token-sidecar fit`: shortens text to fit a token limit."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from sidecar.cli.output import (
    flush_output,
    load_settings_for,
    print_json,
    replace_invalid_utf8,
    warn_if_unknown_model,
)

if TYPE_CHECKING:
    from sidecar.config.settings import Settings, Truncation
    from sidecar.counting.count_result import Measure
    from sidecar.counting.fitting import FittedText


@click.command()
@click.argument("file", type=click.Path(allow_dash=True))
@click.option(
    "--max-tokens",
    type=click.IntRange(min=0),
    required=True,
    help="Maximum number of tokens in the result.",
)
@click.option(
    "--mode",
    type=click.Choice(["start", "middle", "end"]),
    default="middle",
    show_default=True,
    help="The part to keep: the start, the end, or both ends (`middle`).",
)
@click.option("--model", help="Model to count for (default: the `model` setting).")
@click.option("--marker", default="\n...\n", help="Text that replaces the removed middle.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def fit(
    file: str, max_tokens: int, mode: Truncation, model: str | None, marker: str, as_json: bool
) -> None:
    """Print FILE, or standard input (`-`), shortened to a token limit. FILE is not changed.

    Exit codes: 0; 2 if FILE is unreadable or not a text file, or if the configuration is
    invalid. An invalid configuration does not prevent the text from being shortened.
    """
    import asyncio

    text, (settings, has_errors) = _read_text(file), load_settings_for(file)
    name = model or settings.model
    fitted, measure = asyncio.run(_fit_text(text, max_tokens, mode, marker, name, settings))
    if as_json:
        _print_json(fitted, name, measure)
    else:
        with flush_output():
            sys.stdout.buffer.write(fitted.text.encode("utf-8", "surrogateescape"))
    warn_if_unknown_model(name, settings)
    sys.exit(2 if has_errors else 0)


def _print_json(fitted: FittedText, model: str, measure: Measure) -> None:
    import msgspec

    printable = msgspec.structs.replace(fitted, text=replace_invalid_utf8(fitted.text))
    result = msgspec.to_builtins(printable) | {
        "model": model,
        "method": measure.method,
        "tokenizer": measure.tokenizer,
        "errorPercent": measure.error_percent,
    }
    print_json(result)


async def _fit_text(
    text: str, max_tokens: int, mode: Truncation, marker: str, model: str, settings: Settings
) -> tuple[FittedText, Measure]:
    from sidecar.workspace.one_off_counts import open_counts

    async with open_counts() as counts:
        return await counts.fit(text, max_tokens, mode, marker, model, settings)


def _read_text(file: str) -> str:
    """Read text, keeping its line endings and any bytes that are not valid UTF-8.

    Text that starts with a UTF-16 or UTF-32 byte order mark is converted to UTF-8.
    """
    from sidecar.project.files import STDIN, encoding_of, read_bytes

    try:
        data = sys.stdin.buffer.read() if file == STDIN else read_bytes(file)
    except OSError as error:
        raise click.UsageError(f"cannot read {file}: {error.strerror}") from error
    encoding = encoding_of(data)
    if encoding is None:
        raise click.UsageError(f"{file} is a binary file; only text can be shortened")
    on_error = "surrogateescape" if encoding.startswith("utf-8") else "replace"
    return data.decode(encoding, on_error)
