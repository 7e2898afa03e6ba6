"""The one exception of this room."""

from __future__ import annotations

from sidecar.errors import BadParamsError


class VendorFormatError(BadParamsError):
    """A reply or a usage object that has no known vendor's form.

    Its message names the field at fault and never holds the text of a message.
    """
