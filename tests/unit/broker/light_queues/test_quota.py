"""Limits of MQTT topics: who is refused and with what, what goes on, and what counts after a restart."""

from __future__ import annotations

import pytest

from broker.config import LimitsConfig
from broker.light_queues.quota import PAGE, QueueMarks
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_mqtt_image
from tests.support.clock import ManualClock
from tests.unit.broker.conftest import BrokerBench
from tests.unit.broker.light_queues.sessions import feature, open_session, subscribe


async def publish(running: BrokerBench, topic: bytes, client: bytes = b"nobody") -> int:
    image = encode_mqtt_image(topic, b"x", 1, 1_000, client)
    return (await running.connect().request(Command(Code.APPEND_MANY, body=image))).code


@pytest.fixture
async def limited(tmp_path, request):
    bench = BrokerBench(tmp_path / "data", ManualClock(), limits=LimitsConfig(**request.param))
    yield bench
    bench.store.close()


PARENT, USER = {"mqtt_topics_per_parent_max": 3}, {"mqtt_topics_per_user_max": 2}


@pytest.mark.parametrize("limited", [PARENT], indirect=True)
async def test_one_topic_too_many_below_a_parent_is_refused_and_the_others_go_on(limited) -> None:
    for name in (b"plant/1", b"plant/2", b"plant/3", b"other/1"):
        assert await publish(limited, name) == 0
    for _ in range(2):
        assert await publish(limited, b"plant/4") == ResponseCode.FLOW_CONTROL
    assert limited.store.queues.find(b"%LMQ%plant%2F4") is None
    assert await publish(limited, b"plant/1") == 0
    assert await publish(limited, b"other/2") == 0
    assert limited.registry.values()["rocketmq_requests_refused_total{mqtt_topics_per_parent}"] == 2
    await limited.restart()
    assert await publish(limited, b"plant/4") == ResponseCode.FLOW_CONTROL, "counted again from the log"
    limited.store.queues.delete([limited.store.queues.find(b"%LMQ%plant%2F2")])
    assert await publish(limited, b"plant/4") == 0


@pytest.mark.parametrize("limited", [PARENT], indirect=True)
async def test_a_subscription_takes_no_room_of_a_parent_away(limited) -> None:
    session = await open_session(limited, "reader", "reader")
    for number in range(5):
        assert (await subscribe(limited, session, f"plant/only/{number}")).code < 0x80
    for name in (b"plant/1", b"plant/2", b"plant/only/0"):
        assert await publish(limited, name) == 0
    assert await publish(limited, b"plant/only/1") == ResponseCode.FLOW_CONTROL


@pytest.mark.parametrize("limited", [USER], indirect=True)
async def test_a_user_is_refused_alone_for_what_he_published_and_subscribed_to(limited) -> None:
    for name in ("ann", "bob"):
        await open_session(limited, f"of {name}", name)
    session = await open_session(limited, "second of ann", "ann")
    assert await publish(limited, b"plant/1", b"of ann") == 0
    assert (await subscribe(limited, session, "plant/2")).code < 0x80
    assert await publish(limited, b"plant/3", b"of ann") == ResponseCode.FLOW_CONTROL
    assert (await subscribe(limited, session, "plant/4")).code == 0x97
    assert await publish(limited, b"fresh/3", b"of ann") == ResponseCode.FLOW_CONTROL
    assert limited.broker.topics.table.get("fresh") is None, "no parent topic for it either"
    assert await publish(limited, b"plant/2", b"of ann") == 0
    assert await publish(limited, b"plant/5", b"of bob") == 0
    assert await publish(limited, b"plant/5", b"of ann") == 0, "what exists goes on for everybody"
    limited.store.queues.delete([limited.store.queues.find(b"%LMQ%plant%2F1")])
    assert await publish(limited, b"plant/3", b"of ann") == 0


@pytest.mark.parametrize("limited", [USER], indirect=True)
async def test_after_a_start_a_topic_counts_for_who_publishes_there_first(limited) -> None:
    await open_session(limited, "of ann", "ann", expiry_s=600)
    for name in (b"plant/1", b"plant/2"):
        assert await publish(limited, name, b"of ann") == 0
    await limited.restart()
    await open_session(limited, "of ann", "ann", expiry_s=600)
    await open_session(limited, "of bob", "bob", expiry_s=600)
    assert await publish(limited, b"plant/1", b"of ann") == 0
    assert await publish(limited, b"plant/2", b"of bob") == 0
    assert await publish(limited, b"plant/3", b"of ann") == 0
    assert await publish(limited, b"plant/4", b"of ann") == ResponseCode.FLOW_CONTROL
    quota = feature(limited).quota
    with pytest.raises(Refused):
        quota.check("ann")
    quota.check("bob")


@pytest.mark.parametrize("limited", [PARENT | USER], indirect=True)
async def test_what_was_accepted_before_is_placed_whatever_the_limits_say(limited) -> None:
    """A delayed message, a will, rows of a batch: their senders have their answer."""
    await open_session(limited, "of ann", "ann")
    for name in (b"plant/1", b"plant/2"):
        assert await publish(limited, name, b"of ann") == 0
    placement = limited.broker.publishing.placement
    for name in (b"plant/3", b"plant/4"):
        placement.placed(encode_mqtt_image(name, b"due", 1, 1_000, b"of ann"))
        assert limited.store.queues.find(b"%LMQ%" + name.replace(b"/", b"%2F")) is not None
    assert await publish(limited, b"plant/5", b"of bob") == ResponseCode.FLOW_CONTROL


def test_a_page_goes_with_its_last_number() -> None:
    marks = QueueMarks()
    for queue in (3, PAGE - 1, 5 * PAGE):
        marks.set(queue, queue + 1)
    marks.set(3, 9)
    assert [marks.get(queue) for queue in (3, 4, PAGE - 1, 5 * PAGE, 10**9)] == [9, 0, PAGE, 5 * PAGE + 1, 0]
    marks.set(7 * PAGE, 0)
    marks.set(3, 0)
    marks.set(PAGE - 1, 0)
    marks.set(PAGE - 1, 0)
    assert list(marks._pages) == [5]
    assert marks.get(5 * PAGE) == 5 * PAGE + 1


@pytest.mark.parametrize("limited", [{"mqtt_topics_per_parent_max": 1_500}], indirect=True)
async def test_topics_are_counted_in_steps_after_a_start(limited) -> None:
    """Each is counted once, whether it ends, or begins, before or behind the place that the count has reached."""
    for number in range(1_200):
        assert await publish(limited, b"plant/%d" % number) == 0
        assert await publish(limited, b"other/%d" % number) == 0
    await limited.restart()
    quota = feature(limited).quota
    queues = limited.store.queues
    quota.count_step()
    assert quota.counting
    late = queues.find(b"%LMQ%plant%2F1199")
    queues.delete([queues.find(b"%LMQ%plant%2F0"), late])
    assert await publish(limited, b"plant/new") == 0
    while quota.counting:
        quota.count_step()
    assert (quota._parents[b"plant"], quota._parents[b"other"]) == (1_199, 1_200)
    for number in range(301):
        assert await publish(limited, b"plant/more/%d" % number) == 0
    assert await publish(limited, b"plant/one/too/many") == ResponseCode.FLOW_CONTROL
