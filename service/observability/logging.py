"""Logs as JSON lines on stderr, ours and the libraries' alike."""

from __future__ import annotations

import logging
import sys

import structlog

_SHARED_PROCESSORS: list[structlog.typing.Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]

# Without the frames' variables: among them are keys and addresses with passwords, and to write them all down
# takes so long that a service with some hundred streams would not come to its end.
_TRACEBACKS = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)

# They log each request's address, which may hold a password, and where it was redirected, which may be signed.
_TELLING_ADDRESSES = ("httpx", "httpcore", "urllib3")


def configure_logging(level: str = "info") -> None:
    """Send every log record of this process to stderr as one JSON object a line, from `level` up."""
    structlog.configure(
        processors=[
            # Before anything is made of what nobody will read.
            structlog.stdlib.filter_by_level,
            *_SHARED_PROCESSORS,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED_PROCESSORS,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.ExceptionRenderer(_TRACEBACKS),
                structlog.processors.JSONRenderer(default=str),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _TELLING_ADDRESSES:
        logging.getLogger(name).setLevel(max(root.level, logging.WARNING))
    if level != "debug":
        # The queue's engine tells each job's story too, and calls a job that is handed back an error.
        logging.getLogger("procrastinate").setLevel(max(root.level, logging.WARNING))
