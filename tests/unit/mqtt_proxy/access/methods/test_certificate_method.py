"""The name in a client certificate is the user, and no other."""

from __future__ import annotations

from mqtt_proxy.access.methods.chain import CertificateMethod
from remoting.access.rules import Identity, Shown, Unproven


async def test_who_the_certificate_names() -> None:
    """With the same user name or none; another one is refused, whatever the password."""
    method = CertificateMethod()
    press = Identity("press", False, "c")
    assert await method.check(Shown(client_id="c", certificate="press")) == press
    assert await method.check(Shown(client_id="c", certificate="press", username="press")) == press
    assert (
        await method.check(Shown(client_id="c", certificate="press", username="admin", password=b"x"))
        is Unproven.DENIED
    )
    assert await method.check(Shown(client_id="c", username="press")) is None
    assert await method.check(Shown(client_id="c", certificate="")) is None
    method.refresh()
    assert method.files() == ()
    await method.close()
