"""Certificates in the order of the log: which one is in force where."""

from __future__ import annotations

from spark_connector.decode.sparkplug.payload import KEPT_PER_TOPIC_MAX, Certificate, TopicBirths, read_certificate
from tests.unit.spark_connector.decode.payloads import birth


def test_the_content_of_a_birth() -> None:
    found = read_certificate(5, birth(temp=(7, "Int8"), flag=(0, "Boolean")))
    assert found.aliases == {7: ("temp", 1), 0: ("flag", 11)}
    assert found.datatypes == {"temp": 1, "flag": 11}
    assert not found.broken
    assert "cannot be read" in read_certificate(5, b"\xff").broken


def test_the_one_before_is_in_force() -> None:
    births = TopicBirths()
    for position in (10, 20, 30):
        births.add(Certificate(position, {}, {"m": 1}), 0)
    found = {position: births.at(position) for position in (5, 10, 11, 20, 21, 99)}
    positions = {position: None if one is None else one.position for position, one in found.items()}
    assert positions == {5: None, 10: None, 11: 10, 20: 10, 21: 20, 99: 30}
    assert births.size == 3
    assert births.covers(5)


def test_only_unneeded_certificates_are_dropped() -> None:
    births = TopicBirths()
    for position in range(KEPT_PER_TOPIC_MAX + 10):
        births.add(Certificate(position, {}, {}), 5)
    first = births.certificates[0].position
    assert first == 4
    assert not births.covers(4)
    assert births.covers(5)


def test_a_refusal_is_an_answer() -> None:
    found = TopicBirths(refused="no").at(1)
    assert found is not None
    assert found.broken == "no"
