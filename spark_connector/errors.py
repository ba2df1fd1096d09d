"""What can go wrong between Spark and the broker or in a body, each with the sentence a Spark user will read.

Invariants: every text names what was wrong (option, address, queue and offset) and what to do; the reason why a body
did not become columns fits into one short line and never holds more of it than a few characters; a missing library of
a format is named with what to install, on which side. Pure; any thread.
"""

from __future__ import annotations

import importlib
from typing import Any

from remoting.protocol.errors import LightMQError, LocalMisuse
from remoting.protocol.frames.codes import ResponseCode


def as_sentence(text: str) -> str:
    """The text with a full stop, unless it ends a sentence otherwise."""
    stripped = text.rstrip()
    return stripped if stripped.endswith((".", "?", "!", "…")) else stripped + "."


def phrase(error: Exception) -> str:
    """An error's text as a part of another sentence."""
    return str(error).removesuffix(".")


class _Sentence(LightMQError):
    """An error whose text ends as a sentence."""

    def __init__(self, text: str) -> None:
        super().__init__(as_sentence(text))


class OptionError(_Sentence, LocalMisuse):
    """A connector option, a column or an offset given by the user that cannot be used."""


class BrokerUnreachable(_Sentence):
    """No answer from an address, after the retries the options allow."""


class GroupAbsent(BrokerUnreachable):
    """A broker group that the name servers know has no master now: what it holds exists all the same."""


class BrokerMoved(BrokerUnreachable):
    """Another broker is the master of the group now: the name server knows which, at once or in a moment."""


class BrokerRefused(_Sentence):
    """The broker understood a request and refused it; `code` is RocketMQ's."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code

    @property
    def for_now(self) -> bool:
        """Whether the same request may be granted in a moment: the broker is only starting, ending or busy."""
        return self.code in {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE}


class DataLost(_Sentence):
    """Records that the stream should read are missing or the log is another one; see option failOnDataLoss."""


class BrokenRecord(_Sentence):
    """A record that arrived does not have the shape or the checksum of a record."""


REASON_CHARACTERS_MAX = 200
"""Longest reason; the rest is cut."""


class Mismatch(Exception):
    """A value that does not fit its column; `path` grows on the way out."""

    def __init__(self, wanted: str, found: str, path: str = "") -> None:
        super().__init__(wanted, found, path)
        self.wanted = wanted
        self.found = found
        self.path = path

    def within(self, name: str) -> Mismatch:
        """The same, seen from one level further out."""
        joint = "." if self.path and not self.path.startswith("[") else ""
        return Mismatch(self.wanted, self.found, f"{name}{joint}{self.path}")

    def __str__(self) -> str:
        return shorten(f"{self.path}: {self.wanted} is needed, not {self.found}")


class CorruptBody(LightMQError):
    """A body that does not fit, under `decodeMode` = failfast."""


def shorten(reason: str) -> str:
    """Return the reason in one line of bounded length."""
    line = " ".join(reason.split())
    return line if len(line) <= REASON_CHARACTERS_MAX else line[: REASON_CHARACTERS_MAX - 1] + "…"


PACKAGES = {"google": "protobuf"}
"""Packages that are installed under another name than they are imported."""


def need(module: str, kind: str) -> Any:
    """Import a module for a format; OptionError names the package where it is not installed."""
    top = module.partition(".")[0]
    package = PACKAGES.get(top, top)
    try:
        return importlib.import_module(module)
    except ImportError as failure:
        raise OptionError(
            f"option 'decode' = {kind} needs the package {package!r} on the driver and on every executor; install it "
            f"with: pip install {package} ({failure})"
        ) from None
