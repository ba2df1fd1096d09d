"""Source and sink over TLS against a broker that requires it, and the errors for settings that do not match."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.store.attached.store import in_order
from remoting.client.blocking import BlockingConnection
from remoting.client.tls import ClientTls
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import image
from tests.processes.rig import Server
from tests.support.certificates import HAVE_OPENSSL, Authority

pytestmark = [
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not HAVE_OPENSSL, reason="makes its certificates with openssl"),
]
ROWS = 3_000


class Secured:
    """`lightmq up` that requires TLS and client certificates, and the options to connect to it."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "certificates")
        identity, mine = self.authority.issue(), self.authority.issue("spark", "")
        values = {
            "mode": "enforcing",
            "certificate": identity.certificate,
            "key": identity.key,
            "client_ca": self.authority.certificate,
            "client_required": "true",
        }
        settings = [text for key, value in values.items() for text in ("--set", f"broker.tls.{key}={value}")]
        readers = ["--readers", "1"] if in_order() else []
        self.server = Server(folder / "data", *settings, *readers)
        self.server.start()
        self.tls = ClientTls(self.authority.certificate, mine.certificate, mine.key)
        self.options = {
            "nameServer": f"127.0.0.1:{self.server.ports['remoting']}",
            "fetchRetries": "1",
            "brokerWaitMs": "1000",
            "tls": "true",
            "tlsCaFile": str(self.authority.certificate),
            "tlsCertificateFile": str(mine.certificate),
            "tlsKeyFile": str(mine.key),
        }

    def publish(self, topic: str, span: range) -> None:
        """Store numbered messages."""
        entries = [image.encode_mqtt_image(topic.encode(), b"%d" % n, 1, 0, b"test") for n in span]
        with BlockingConnection("127.0.0.1", self.server.ports["remoting"], tls=self.tls) as connection:
            reply = connection.request(Command(RequestCode.APPEND_MANY, body=b"".join(entries)))
        assert reply.code == 0, reply.remark

    def without(self, *names: str, **more: str) -> dict[str, str]:
        """The options, except some."""
        return {key: value for key, value in self.options.items() if key not in names} | more


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """One server for the module."""
    made = Secured(tmp_path_factory.mktemp("secured"))
    yield made
    made.server.kill_if_running()


def test_read_and_write(spark: Any, secured: Secured, tmp_path: Path) -> None:
    """A stream from topic to topic, exactly once, and a batch read of its output, all over TLS."""
    secured.publish("in/7", range(ROWS))
    rows = spark.readStream.format("rocketmq").options(**secured.options)
    found = rows.option("mqttFilter", "in/#").option("startingOffsets", "earliest").load()
    query = (
        found.selectExpr("body", "'out/7' AS mqttTopic")
        .writeStream.format("rocketmq")
        .options(**secured.options)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert query.exception() is None
    written = spark.read.format("rocketmq").options(**secured.options).option("mqttFilter", "out/7").load()
    assert sorted(int(row.body) for row in written.select("body").collect()) == list(range(ROWS))


def test_who_does_not_agree_is_told_before_any_task(spark: Any, secured: Secured, tmp_path: Path) -> None:
    """Wrong authority or name, no TLS, no client certificate, missing files: the driver fails."""
    secured.publish("refused/1", range(3))
    stranger = str(Authority(tmp_path / "stranger").certificate)
    files = ("tlsCaFile", "tlsCertificateFile", "tlsKeyFile")
    wrong = [
        (secured.without(tlsCaFile=stranger), "no TLS with .*certificate"),
        (secured.without(tlsServerName="other.example"), "no TLS with .*other.example"),
        (secured.without("tls", *files), "TLS only"),
        (secured.without("tlsCertificateFile", "tlsKeyFile"), "no answer from|no TLS with"),
        (secured.without("tls"), "does nothing without the option 'tls'"),
        (secured.without(tlsCaFile=str(tmp_path / "none.pem")), "none.pem: No such file"),
    ]
    frame = spark.createDataFrame([(bytearray(b"x"),)], "body binary")
    for options, words in wrong:
        reader = spark.read.format("rocketmq").options(**options).option("mqttFilter", "refused/1")
        with pytest.raises(Exception, match=words) as caught:
            reader.load().collect()
        assert "Task" not in str(caught.value).splitlines()[0]
        with pytest.raises(Exception, match=words):
            frame.write.format("rocketmq").options(**options).option("mqttTopic", "refused/2").mode("append").save()
    loose = secured.without("tlsCaFile", tlsInsecureSkipVerify="true")
    rows = spark.read.format("rocketmq").options(**loose).option("mqttFilter", "refused/#").load()
    assert sorted(int(row.body) for row in rows.select("body").collect()) == [0, 1, 2]
