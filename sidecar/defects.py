"""Logs the types and locations of unexpected exceptions, but not their messages.

The messages may quote text from documents.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

_MAX_PLACES = 6


def log_defect(exc: BaseException, job: str = "") -> None:
    """Log an unexpected exception. `job` is the name of the background job that failed."""
    places = []
    trace = exc.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_qualname}:{trace.tb_lineno}")
        trace = trace.tb_next
    where = f"{job}: " if job else ""
    logger.error("%s%s at %s", where, type(exc).__name__, " > ".join(places[-_MAX_PLACES:]))
