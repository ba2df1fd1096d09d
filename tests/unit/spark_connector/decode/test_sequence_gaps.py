"""Which Sparkplug messages are numbered; the gaps themselves are tested in tests/interop, in a real session."""

from __future__ import annotations

from spark_connector.decode.sequence_gaps import NUMBERED, NUMBERS
from spark_connector.decode.sparkplug.bodies import OF_DEVICES, OF_NODES, SEQUENCE_MAX


def test_deaths_of_nodes_and_commands_have_no_number() -> None:
    assert set(NUMBERED) == (OF_NODES | OF_DEVICES) - {"NDEATH", "NCMD", "DCMD"}
    assert NUMBERS == SEQUENCE_MAX + 1
