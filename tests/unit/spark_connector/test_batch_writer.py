"""The function for foreachBatch: what it writes, when it writes nothing, what it refuses."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from remoting.protocol.bodies.sink_body import BatchDigest
from spark_connector.batch_writer import BatchWriter
from spark_connector.errors import OptionError
from tests.unit.spark_connector.toy_broker import ToyBroker


class Frame:
    """Records what it was asked to write."""

    def __init__(self) -> None:
        self.saved: list[dict[str, str]] = []
        self.write = self

    def format(self, name: str) -> Frame:
        assert name == "rocketmq"
        return self

    def mode(self, name: str) -> Frame:
        assert name == "append"
        return self

    def options(self, **given: str) -> Any:
        return SimpleNamespace(save=lambda: self.saved.append(given))


def writer(broker: ToyBroker, **options: object) -> BatchWriter:
    host, port = broker.address
    made = BatchWriter("alerts", nameServer=f"{host}:{port}", mqttTopic="a/b", **options)
    return pickle.loads(pickle.dumps(made))


def test_each_batch_once(broker: ToyBroker) -> None:
    frame: Any = Frame()
    write = writer(broker, retain=True)
    write(frame, 0)
    assert [(one["txnAppId"], one["txnVersion"], one["retain"]) for one in frame.saved] == [("alerts", "0", "true")]
    broker.ledger["alerts"] = 0
    write(frame, 0)
    assert len(frame.saved) == 1
    write(frame, 1)
    assert frame.saved[1]["txnVersion"] == "1"


def test_a_batch_whose_rows_are_known_is_compared(broker: ToyBroker) -> None:
    """By the write, which sends nothing; unless nobody wants to compare."""
    frame: Any = Frame()
    broker.ledger["alerts"], broker.digests["alerts"] = 0, BatchDigest(5, 1, 2, 1)
    writer(broker)(frame, 0)
    assert len(frame.saved) == 1
    writer(broker, replayMismatch="skip")(frame, 0)
    assert len(frame.saved) == 1


def test_another_checkpoint_is_refused(broker: ToyBroker) -> None:
    broker.ledger["alerts"] = 9
    with pytest.raises(OptionError, match="committed batch 9 and this query writes batch 3"):
        writer(broker)(Frame(), 3)  # type: ignore[arg-type]


def test_at_least_once_needs_no_ledger(broker: ToyBroker) -> None:
    frame: Any = Frame()
    broker.ledger["alerts"] = 9
    writer(broker, delivery="at-least-once")(frame, 3)
    assert len(frame.saved) == 1


@pytest.mark.parametrize(("options", "says"), [({"mqttTopik": "a"}, "mqttTopic"), ({"txnVersion": 1}, "itself")])
def test_wrong_options_are_found_before_the_query_starts(options: dict[str, object], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        BatchWriter("alerts", **options)
