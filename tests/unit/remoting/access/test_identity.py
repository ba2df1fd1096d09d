"""Identities are values."""

from __future__ import annotations

import pytest

from remoting.access.identity import ANONYMOUS, Identity, Unproven


def test_identities_are_values() -> None:
    """Equal when they say the same, and not to be changed behind somebody's back."""
    assert Identity("", anonymous=True) == ANONYMOUS
    assert Identity("ann", anonymous=False) != Identity("ann", anonymous=True)
    with pytest.raises(AttributeError):
        ANONYMOUS.name = "root"  # type: ignore[misc]


def test_reasons_are_metric_labels() -> None:
    """Their words are part of the operator's vocabulary."""
    assert [str(one) for one in Unproven] == ["denied", "busy", "unavailable", "left"]
