"""Moving in from RocketMQ 5.5.0 with two broker groups, users that have to sign, and TLS; and back to it.

The migration is the only one that signs as an administrator; without its key, and with a wrong one, it says so.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.maven import jars, running
from benchmarks.mqtt_servers import free_port, wait_listening
from benchmarks.rocketmq_clients import OTHER_HEAP, java, wait_registered
from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.transport.signature import Signer
from tests.processes.migrations import QUEUES, TOPIC, Migrator, all_of, send
from tests.processes.rig import Installation, no_traceback
from tests.support.certificates import Authority

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]

ADMIN = Signer("admin", "the-secret")
AUTH = "org.apache.rocketmq.auth"
SETTINGS = (
    "authenticationEnabled=true",
    f"authenticationProvider={AUTH}.authentication.provider.DefaultAuthenticationProvider",
    f"authenticationMetadataProvider={AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    'initAuthenticationUser={"username":"admin","password":"the-secret"}',
    'innerClientAuthenticationCredentials={"accessKey":"admin","secretKey":"the-secret"}',
    "authorizationEnabled=true",
    f"authorizationProvider={AUTH}.authorization.provider.DefaultAuthorizationProvider",
    f"authorizationMetadataProvider={AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
)
MESSAGES = 40
"""At each of the two brokers."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def guarded(tmp_path: Path, authority: Authority) -> Iterator[tuple[str, list[str]]]:
    """The name server and two broker groups; they take TLS, and plain connections for this test's own requests."""
    folder = jars("rocketmq")
    if folder is None:
        pytest.skip("RocketMQ's jars cannot be fetched: see the output")
    identity = authority.issue()
    tls = [
        "-Dtls.server.mode=permissive", "-Dtls.test.mode.enable=false", "-Dtls.server.need.client.auth=none",
        f"-Dtls.server.keyPath={identity.key}", f"-Dtls.server.certPath={identity.certificate}",
    ]  # fmt: skip
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    names, ports = free_port(), [free_port(), free_port()]
    with ExitStack() as stack:
        (tmp_path / "namesrv.conf").write_text(f"listenPort={names}\n")
        started = "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(tmp_path / "namesrv.conf")
        stack.enter_context(running(java(folder, tmp_path, [*OTHER_HEAP, *tls], *started), **quiet))
        wait_listening(names)
        for name, port in zip("ab", ports, strict=True):
            home = tmp_path / f"broker-{name}"
            home.mkdir()
            lines = [f"listenPort={port}", f"haListenPort={free_port()}", f"namesrvAddr=127.0.0.1:{names}",
                     "brokerIP1=127.0.0.1", f"brokerName=broker-{name}", "flushDiskType=ASYNC_FLUSH",
                     "autoCreateTopicEnable=true", f"storePathRootDir={home}/store",
                     f"storePathCommitLog={home}/store/commitlog", *SETTINGS]  # fmt: skip
            (home / "broker.conf").write_text("\n".join(lines))
            started = "org.apache.rocketmq.broker.BrokerStartup", "-c", str(home / "broker.conf")
            stack.enter_context(running(java(folder, home, [*OTHER_HEAP, *tls], *started), **quiet))
            wait_listening(port)
        wait_registered(names)
        yield f"127.0.0.1:{names}", [f"127.0.0.1:{port}" for port in ports]


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path / "ours")
    try:
        made.start()
        yield made
        no_traceback(made)
    finally:
        made.kill_if_running()


def key_file(path: Path, signer: Signer) -> Path:
    path.write_text(f"{signer.access_key}:{signer.secret}\n")
    path.chmod(0o600)
    return path


def test_two_groups_with_users_and_tls_move_in_and_back(
    guarded: tuple[str, list[str]], ours: Installation, authority: Authority, tmp_path: Path
) -> None:
    names, brokers = guarded
    fields = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES),
              "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}  # fmt: skip
    for at, broker in enumerate(brokers):
        with BlockingConnection.dial(broker, signer=ADMIN) as connection:
            checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields)))
        for number in range(at * MESSAGES, (at + 1) * MESSAGES):
            checked(send(broker, number, ADMIN))
    tls = ("--from-tls", "--from-tls-ca", str(authority.certificate))
    signed = ("--from-key-file", str(key_file(tmp_path / "key", ADMIN)), *tls)
    wrong = key_file(tmp_path / "wrong", Signer("admin", "not-the-secret"))
    migrator = Migrator(names, ours.address, tmp_path / "migrate.log")
    assert "code 16" in migrator.refused("copy", *tls)
    assert "code 16" in migrator.refused("status", "--from-key-file", str(wrong), *tls)
    migrator.run("copy", *signed)
    assert {row["state"] for row in migrator.run("verify", "--json", *signed)} == {"equal"}
    migrator.run("switch", "--topic", TOPIC, "--settle", "1", *signed)
    wanted = {at * QUEUES + number % QUEUES: [] for at in range(2) for number in range(QUEUES)}
    for number in range(2 * MESSAGES):
        wanted[number // MESSAGES * QUEUES + number % QUEUES].append(number)
    for number in range(2 * MESSAGES, 3 * MESSAGES):  # to the first four of the eight queues here
        checked(send(ours.address, number))
        wanted[number % QUEUES].append(number)
    migrator.run("switch-back", "--topic", TOPIC, *signed)
    assert {queue: all_of(ours.address, queue) for queue in wanted} == wanted
    for at, broker in enumerate(brokers):
        for queue in range(QUEUES):
            assert all_of(broker, queue, ADMIN) == wanted[at * QUEUES + queue]
    assert {row["state"] for row in migrator.run("verify", "--json", *signed)} == {"equal"}
