"""Terms of subscriptions as values: what follows from the options, and one object for the same terms."""

from __future__ import annotations

import pytest

from mqtt_proxy.grants import grant_of


@pytest.mark.parametrize(
    ("options", "identifier", "judged", "plain"),
    [
        (0, 0, False, True), (0x0C, 0, False, True), (1, 0, False, False), (2, 0, False, False), (0, 5, False, False),
        (0, 0, True, False),
    ],
)  # fmt: skip
def test_the_options_of_a_subscription(options: int, identifier: int, judged: bool, plain: bool) -> None:
    """Retain handling is left to the broker; anything else needs more than topic and payload."""
    grant = grant_of(1, options, identifier, judged)
    assert (grant.no_local, grant.retain_as_published) == (options == 1, options == 2)
    assert grant.identifiers == ((5,) if identifier else ())
    assert grant.is_plain == plain


def test_a_changed_grant_keeps_the_other_terms() -> None:
    """The QoS is never raised."""
    grant = grant_of(1, 2, 9)
    assert grant.limited(2) is grant
    assert grant.limited(0) is grant_of(0, 2, 9)
    assert grant.checked(True) is grant_of(1, 2, 9, True)
    assert grant.checked(True).limited(0).judged
    assert grant.checked(True).checked(False) is grant
