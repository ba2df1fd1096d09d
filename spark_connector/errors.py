"""What can go wrong between Spark and the broker, each with the sentence a Spark user will read.

Invariant: every text names what was wrong (option, address, queue and offset) and what to do. Pure.
"""

from __future__ import annotations

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
    """Records that the stream should read are gone or the log is another one; see option failOnDataLoss."""


class BrokenRecord(_Sentence):
    """A record that arrived does not have the shape or the checksum of a record."""
