"""The front's connection is what the bridge takes it for."""

from __future__ import annotations

from mqtt_proxy.listening.client_connection import ClientConnection
from mqtt_proxy.listening.connection import Connection


def test_a_connection_has_all_that_is_asked_of_it() -> None:
    """Attributes and methods alike; what is set in `__init__` stands among the slots."""
    wanted = {name for name in (*ClientConnection.__annotations__, *vars(ClientConnection)) if not name.startswith("_")}
    assert len(wanted) >= 8
    assert wanted <= set(dir(Connection)), wanted - set(dir(Connection))
