"""Structured logs: an event name and key=value pairs (or one JSON object) per line, on standard error.

Invariant: a value whose key names a secret never reaches the stream. Lines of the standard library's ``logging`` (from
asyncio, aiohttp) come out in the same form. Thread rule: loggers may be used from every thread; a line is one write.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

SECRET_KEY = re.compile(r"passw|secret|token|credential|authorization|private_key|api_key|access_key", re.IGNORECASE)
REDACTED = "***"
LEVELS = ("debug", "info", "warning", "error")

Fields = MutableMapping[str, Any]


_in_use = ("info", False)
_stream: TextIO | None = None


def in_use() -> tuple[str, bool]:
    """Return the level and form (JSON or not) of the last `setup`, for child processes."""
    return _in_use


def setup(level: str = "info", *, json: bool = False, stream: TextIO | None = None) -> None:
    """Send all logs of the process to ``stream`` (standard error) from ``level`` up; call once at start."""
    global _in_use, _stream
    assert level in LEVELS, level
    _in_use, _stream = (level, json), stream
    number = logging.getLevelNamesMapping()[level.upper()]
    _configure(number, json=json, stream=stream)
    root = logging.getLogger()
    root.handlers[:] = [_Forward()]
    root.setLevel(max(number, logging.WARNING))  # of libraries only warnings and errors


def set_level(level: str) -> None:
    """Show events from ``level`` up from now on, in the form that `setup` chose."""
    setup(level, json=_in_use[1], stream=_stream)


def _configure(number: int, *, json: bool, stream: TextIO | None) -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            redact,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=repr) if json else render_line,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        # standard error is looked up per logger, so that a test that captures it sees the lines
        logger_factory=lambda *_: structlog.WriteLogger(stream if stream is not None else sys.stderr),
        cache_logger_on_first_use=False,
    )


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """A logger whose lines carry the component's name; before :func:`setup` warnings and errors are shown."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(component=name)
    return logger


def redact(_logger: object, _method: str, fields: Fields) -> Fields:
    """Replace the value of every key that names a secret, also one level down."""
    for key, value in fields.items():
        if SECRET_KEY.search(key):
            fields[key] = REDACTED
        elif isinstance(value, dict):
            fields[key] = {k: REDACTED if SECRET_KEY.search(str(k)) else v for k, v in value.items()}
    return fields


def render_line(_logger: object, _method: str, fields: Fields) -> str:
    """``2026-01-31T12:00:00Z warning proxy.listener slow_reader client=a lag=7``; a traceback follows on own lines."""
    at, level, name = fields.pop("at", ""), fields.pop("level", ""), fields.pop("component", "")
    event, trace = fields.pop("event", ""), fields.pop("exception", None)
    parts = [str(part) for part in (at, level, name, event) if part != ""]
    parts += [f"{key}={_value(value)}" for key, value in fields.items()]
    line = " ".join(parts)
    return f"{line}\n{trace}" if trace else line


def _value(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    if text and text.isprintable() and " " not in text and '"' not in text and "=" not in text:
        return text
    return '"' + text.encode("unicode_escape").decode().replace('"', '\\"') + '"'


class _Forward(logging.Handler):
    """Hands records of the standard library's logging to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        logger = get_logger(record.name)
        method = getattr(logger, record.levelname.lower(), logger.error)
        method(record.getMessage(), exc_info=record.exc_info or None)


_configure(logging.WARNING, json=False, stream=None)  # structlog's own default would write to standard output
