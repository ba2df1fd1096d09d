"""Every way to prove a name, through sockets into one installation.

Which clients are admitted, as which user, and which are refused. A name refused by one method is not tried on another;
an unproven name is never used; what belongs to a name (groups, rules, an expiry) applies.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import argon2
import jwt
import pytest
import structlog
from aiohttp import web

from lightmq.configuration import Configuration, UpConfig
from lightmq.servers.all_in_one import AllInOne
from mqtt_proxy.access.scram import MECHANISM, derive
from mqtt_proxy.config import AccessConfig, ListenConfig, ProxyConfig
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.reason_codes import ReasonCode
from tests.security.raw_client import RawClient
from tests.support.certificates import HAVE_OPENSSL, Authority
from tests.support.scram_client import ScramClient

HASHER = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
KEY = b"a shared secret of 32 bytes, yes"
SECRET = "correct horse"
LIST = """\
pattern readwrite home/%u/#
group line
topic read line/#
pattern deny home/%u/never
"""
BAD = ReasonCode.BAD_USER_NAME_OR_PASSWORD

pytestmark = pytest.mark.skipif(not HAVE_OPENSSL, reason="certificates are made with openssl")


class World:
    """An installation with all methods, and a hook that knows hal."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "ca")
        server = self.authority.issue()
        keys, users = folder / "keys", folder / "users"
        secret = base64.urlsafe_b64encode(KEY).rstrip(b"=").decode()
        keys.write_text(json.dumps({"keys": [{"kty": "oct", "alg": "HS256", "kid": "s", "k": secret}]}))
        scram = derive(SECRET, b"salt", 4_096)
        users.write_text(f"ann:{HASHER.hash(SECRET)}\nsam:{scram}\n")
        users.chmod(0o600)
        (folder / "acl").write_text(LIST)
        self.config = ProxyConfig(
            host="127.0.0.1",
            port=0,
            password_file=users,
            acl_file=folder / "acl",
            access=AccessConfig(jwt_keys_file=keys, jwt_algorithms=("HS256",), jwt_leeway_s=0),
            listen=ListenConfig(
                tls_port=0,
                tls_certificate=server.certificate,
                tls_key=server.key,
                tls_client_ca=self.authority.certificate,
            ),
        )
        self.folder = folder
        self.clients: list[RawClient] = []
        self.asked: list[dict[str, Any]] = []

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/", self._hook)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        object.__setattr__(self.config.access, "http_url", f"http://127.0.0.1:{self._runner.addresses[0][1]}/")
        up = UpConfig(data_directory=self.folder / "data", remoting_port=0, admin_port=0)
        self.installation = AllInOne(Configuration(up=up, proxy=self.config))
        await self.installation.start()
        self.ports = self.installation.ports()

    async def stop(self) -> None:
        for client in self.clients:
            await client.close()
        await self.installation.stop()
        await self._runner.cleanup()

    async def _hook(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        known = self.asked[-1]["username"] == "hal" and self.asked[-1].get("password") == SECRET
        allowed = {"result": "allow", "groups": ["line"], "acl": ["write cmd/%u"]}
        return web.json_response(allowed if known else {"result": "deny"})

    async def client(self, user: str | None, password: bytes | None, **more: Any) -> RawClient:
        port = self.ports["mqtt-tls"] if "tls" in more else self.ports["mqtt"]
        made = await RawClient.connect(port, more.pop("client_id", "c"), user, password, **more)
        self.clients.append(made)
        return made


def token(user: str, expires_s: float = 600, **claims: object) -> bytes:
    content = {"sub": user, "exp": time.time() + expires_s, **claims}
    return jwt.encode(content, KEY, "HS256", headers={"kid": "s"}).encode()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    with structlog.testing.capture_logs() as said:
        made = World(tmp_path)
        await made.start()
        yield made
        await made.stop()
    text = repr(said)
    for secret in (SECRET, base64.b64encode(SECRET.encode()).decode(), KEY.decode(), "eyJ"):
        assert secret not in text, "a secret was logged"


async def is_user(client: RawClient, name: str) -> None:
    """The connection has the rights of this user, and of no other."""
    assert client.connack.code == 0
    assert await client.subscribe(f"home/{name}/x") == 1
    for other in {"ann", "sam", "hal", "tom", "press"} - {name}:
        assert await client.subscribe(f"home/{other}/x") == ReasonCode.NOT_AUTHORIZED
    assert await client.publish(f"home/{name}/never") == ReasonCode.NOT_AUTHORIZED


async def test_passwords(world: World) -> None:
    """Of the file; a wrong one is not tried on the hook, an unknown user is."""
    await is_user(await world.client("ann", SECRET.encode()), "ann")
    await is_user(await world.client("sam", SECRET.encode(), client_id="s"), "sam")
    assert (await world.client("ann", b"wrong")).connack.code == BAD
    assert (await world.client("ann", b"")).connack.code == BAD
    assert world.asked == []


async def test_the_hook(world: World) -> None:
    """Its groups and rules apply."""
    hal = await world.client("hal", SECRET.encode())
    await is_user(hal, "hal")
    assert await hal.subscribe("line/3") == 1
    assert await hal.publish("cmd/hal") == 0
    assert await hal.publish("cmd/ann") == ReasonCode.NOT_AUTHORIZED
    assert (await world.client("hal", b"wrong")).connack.code == BAD
    assert (await world.client("eve", SECRET.encode())).connack.code == BAD
    assert [one["username"] for one in world.asked] == ["hal", "hal", "eve"]


async def test_tokens(world: World) -> None:
    """Their groups and rules apply; an invalid token is not tried on another method."""
    tom = await world.client("tom", token("tom", groups=["line"], acl=["read extra", "write home/%u/never"]))
    await is_user(tom, "tom")  # the list's deny wins over the token's rule
    assert await tom.subscribe("line/3") == 1
    assert await tom.subscribe("extra") == 1
    changed = token("hal")[:-2] + b"xx"
    for user, password in (
        ("ann", token("tom")), ("tom", token("tom", -1)), ("tom", token("tom", aud="x")), ("hal", changed),
    ):  # fmt: skip
        assert (await world.client(user, password)).connack.code == BAD
    assert world.asked == []


async def test_an_expiring_token(world: World) -> None:
    """It ends the connection it opened, with a reason; the right has ended while the client is still connected."""
    tom = await world.client("tom", token("tom", 1.5))
    assert await tom.subscribe("home/tom/x") == 1
    end = await tom.receive()
    assert (type(end), end.reason) == (packets.Disconnect, ReasonCode.NOT_AUTHORIZED)
    assert await tom.receive() is None


async def test_certificates(world: World) -> None:
    """The name is the user; another user name is refused with any password; without one other methods are asked."""
    press = world.authority.issue("press", "")
    context = press.context(world.authority.certificate)
    context.check_hostname = False
    await is_user(await world.client(None, None, tls=context), "press")
    await is_user(await world.client("press", b"anything", tls=context), "press")
    assert (await world.client("ann", SECRET.encode(), tls=context)).connack.code == BAD
    without = world.authority.trusting()
    without.check_hostname = False
    await is_user(await world.client("ann", SECRET.encode(), tls=without, client_id="a"), "ann")
    assert (await world.client("press", b"", tls=without)).connack.code == BAD


async def test_a_proof_without_the_password(world: World) -> None:
    """SCRAM-SHA-256: both sides know it, neither sends it; only for users with such a credential."""
    for user, password, code in (
        ("sam", SECRET, 0),
        ("sam", "wrong", 0x87),
        ("ann", SECRET, 0x87),
        ("eve", SECRET, 0x87),
    ):
        scram = ScramClient(user, password)
        first = {props.AUTH_METHOD: MECHANISM.encode(), props.AUTH_DATA: scram.first()}
        client = await world.client(None, None, properties=first)
        challenge = client.connack
        assert isinstance(challenge, packets.Auth), user
        proof = {
            props.AUTH_METHOD: MECHANISM.encode(),
            props.AUTH_DATA: scram.final(challenge.properties[props.AUTH_DATA]),
        }
        client.connack = await client.ask(packets.Auth(ReasonCode.CONTINUE_AUTHENTICATION, proof))
        assert client.connack.code == code, (user, password)
        if code == 0:
            assert scram.believes(client.connack.properties[props.AUTH_DATA])
            await is_user(client, "sam")
    other = await world.client(
        None, None, properties={props.AUTH_METHOD: b"SCRAM-SHA-1", props.AUTH_DATA: b"n,,n=a,r=b"}
    )
    assert other.connack.code == ReasonCode.BAD_AUTHENTICATION_METHOD


async def test_an_anonymous_client(world: World) -> None:
    """A client of this machine without a user name has none, whatever its client id."""
    nobody = await world.client(None, None, client_id="ann")
    assert nobody.connack.code == 0
    for name in ("ann", "+", ""):
        assert await nobody.subscribe(f"home/{name}/x") == ReasonCode.NOT_AUTHORIZED
