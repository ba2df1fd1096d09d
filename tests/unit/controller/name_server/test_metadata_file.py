"""The file: whole or absent, and clear words when it is neither."""

from __future__ import annotations

import pytest

from controller.name_server.metadata_file import MetadataFile, encode_metadata
from controller.name_server.state import BrokerInstance, Group, Metadata
from remoting.protocol.bodies.route_body import QueueData
from remoting.protocol.errors import LocalMisuse


def test_round_trip(tmp_path):
    file = MetadataFile(tmp_path)
    assert file.load() == Metadata()
    metadata = Metadata(
        {"b": Group("C", {0: BrokerInstance("h:1"), 1: BrokerInstance("h:2")}, writable=False)},
        {"t": {"b": QueueData("b", 1, 1, 6)}},
        {"n": {"k": "v"}},
    )
    file.save(encode_metadata(metadata))
    assert file.load() == metadata
    assert [path.name for path in tmp_path.iterdir()] == ["metadata.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is damaged"),
        (b"\xff", "is damaged"),
        (b'{"format":1,"metadata":[]}', "is damaged"),
        (b'{"format":9,"metadata":{}}', "has format 9"),
    ],
)
def test_what_cannot_be_read_names_the_file_and_the_way_out(tmp_path, content, message):
    file = MetadataFile(tmp_path)
    file.path.write_bytes(content)
    with pytest.raises(LocalMisuse, match=message) as caught:
        file.load()
    assert str(file.path) in str(caught.value)
