"""The controller's metadata on disk: one JSON file, replaced atomically.

    {"format": 1, "metadata": {"groups": {...}, "topics": {...}, "key_values": {...}}}

Invariant: the file is whole at every instant, the old content or the new. Thread rule: both calls block.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from controller.name_server.state import Metadata
from remoting.protocol.errors import LocalMisuse
from runtime.files import atomic_replace

FORMAT = 1
FILE_NAME = "metadata.json"


class _Content(msgspec.Struct):
    format: int
    metadata: msgspec.Raw


class MetadataFile:
    """The file of one data directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME

    def load(self) -> Metadata:
        """What was stored last, or empty metadata; LocalMisuse says what is wrong with the file and what to do."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return Metadata()
        try:
            content = msgspec.json.decode(data, type=_Content)
            if content.format == FORMAT:
                return msgspec.json.decode(content.metadata, type=Metadata)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise LocalMisuse(
                f"{self.path} is damaged ({error}): put back a copy, or move it away - brokers register again by "
                f"themselves, only key-value entries and withdrawn write permissions are lost"
            ) from error
        raise LocalMisuse(
            f"{self.path} has format {content.format}, this version reads {FORMAT}: use the version that wrote it"
        )

    def save(self, data: bytes) -> None:
        """Replace the file's content durably. Raises OSError."""
        atomic_replace(self.path, data)


def encode_metadata(metadata: Metadata) -> bytes:
    """The file's content."""
    return msgspec.json.encode(_Content(FORMAT, msgspec.Raw(msgspec.json.encode(metadata))))
