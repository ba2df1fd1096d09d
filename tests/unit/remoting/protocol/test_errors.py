"""The exception tree: three families, and a corrupt record is the peer's fault."""

from __future__ import annotations

import pytest

from remoting.protocol.errors import CorruptRecord, LightMQError, LocalMisuse, Refused, RemoteViolation


def test_families_are_disjoint_and_share_one_root():
    families = (LocalMisuse, RemoteViolation, Refused)
    for family in families:
        assert issubclass(family, LightMQError)
        assert not any(issubclass(family, other) for other in families if other is not family)
    assert issubclass(CorruptRecord, RemoteViolation)


def test_refused_carries_code_and_remark():
    with pytest.raises(Refused, match="code 17: no topic x") as caught:
        raise Refused(17, "no topic x")
    assert (caught.value.code, caught.value.remark) == (17, "no topic x")


def test_violation_carries_its_reason():
    assert RemoteViolation("frame too long").reason == "frame too long"
    assert str(CorruptRecord("magic")) == "magic"
