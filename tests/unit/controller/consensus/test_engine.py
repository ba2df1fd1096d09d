"""The errors say what the asker can do."""

from __future__ import annotations

from controller.consensus.engine import NotLeading


def test_who_leads_is_told():
    """Or that nobody knows."""
    assert "n2" in str(NotLeading("n2"))
    assert "not known" in str(NotLeading(None))
