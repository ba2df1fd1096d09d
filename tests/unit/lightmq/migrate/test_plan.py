"""What is mirrored and where to: every source queue has its own target queue; what is left out has a reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightmq.migrate.plan import Plan, make_plan
from remoting.protocol.bodies.controller_body import TopicConfig


def planned(topics: dict[str, TopicConfig], **more: object) -> Plan:
    groups = {"broker-a": {"billing": {"groupName": "billing"}}}
    return make_plan({"broker-a": topics}, groups, ["new"], **more)  # type: ignore[arg-type]


COUNTS = st.dictionaries(st.sampled_from("abc"), st.dictionaries(st.sampled_from("xy"), st.integers(1, 5)), min_size=1)


@given(COUNTS, st.integers(1, 3))
def test_each_queue_has_one_of_its_own_that_exists(counts: dict[str, dict[str, int]], targets: int) -> None:
    sources = {
        broker: {topic: TopicConfig(topic, count, count) for topic, count in found.items()}
        for broker, found in counts.items()
    }
    plan = make_plan(sources, {}, [f"t{number}" for number in range(targets)])
    assert len(plan.queues) == sum(sum(found.values()) for found in counts.values())
    places = {(one.topic, one.target_broker, one.target_queue) for one in plan.queues}
    assert len(places) == len(plan.queues) == len({one.named("rmq") + one.topic for one in plan.queues})
    for one in plan.queues:
        assert one.target_queue < plan.topics[one.target_broker][one.topic].write_queue_nums
    if targets >= len(counts):
        assert all(one.target_queue == one.source_queue for one in plan.queues)


@given(COUNTS, COUNTS, st.integers(1, 2))
def test_what_was_copied_stays_where_it_is(
    before: dict[str, dict[str, int]], after: dict[str, dict[str, int]], targets: int
) -> None:
    """Brokers, topics and queues that come later get places that are free."""
    names = [f"t{number}" for number in range(targets)]

    def plan_of(counts: dict[str, dict[str, int]], copied: dict[tuple[str, str, int], tuple[str, int]]) -> Plan:
        sources = {
            broker: {topic: TopicConfig(topic, number, number) for topic, number in found.items()}
            for broker, found in counts.items()
        }
        return make_plan(sources, {}, names, copied=copied)

    def places(plan: Plan) -> dict[tuple[str, str, int], tuple[str, int]]:
        return {
            (one.topic, one.source_broker, one.source_queue): (one.target_broker, one.target_queue)
            for one in plan.queues
        }

    copied = places(plan_of(before, {}))
    plan = plan_of(after, copied)
    found = places(plan)
    assert all(found[queue] == place for queue, place in copied.items() if queue in found)
    everything = {(queue[0], place) for queue, place in {**copied, **found}.items()}
    assert len(everything) == len({**copied, **found})
    for one in plan.queues:
        assert one.target_queue < plan.topics[one.target_broker][one.topic].write_queue_nums


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (TopicConfig("t", perm=2), "cannot be read"),
        (TopicConfig("t", attributes={"queue.type": "BatchCQ"}), "BatchCQ"),
        (TopicConfig("t", attributes={"message.type": "LITE"}), "lite topics"),
        (TopicConfig("SCHEDULE_TOPIC_XXXX"), "delayed"),
        (TopicConfig("RMQ_SYS_TRANS_HALF_TOPIC"), "half message"),
    ],
)
def test_what_is_left_out_has_a_reason(config: TopicConfig, reason: str) -> None:
    plan = planned({config.topic_name: config})
    assert plan.queues == []
    assert reason in plan.left_out[config.topic_name]


def test_system_topics_and_groups_stay_where_they_are_and_retries_come_with_their_group() -> None:
    names = ["TBW102", "broker-a", "c1", "rmq_sys_REVIVE_LOG_c1", "%RETRY%billing", "%RETRY%billing_orders",
             "%DLQ%billing", "%RETRY%other", "orders"]  # fmt: skip
    plan = planned({name: TopicConfig(name, 1, 1) for name in names}, clusters=["c1"])
    assert sorted(plan.topics["new"]) == ["%DLQ%billing", "%RETRY%billing", "%RETRY%billing_orders", "orders"]
    groups = {"broker-a": {name: {"groupName": name} for name in ("TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS", "mine")}}
    assert list(make_plan({"broker-a": {}}, groups, ["new"]).groups) == ["mine"]
    assert make_plan({"broker-a": {}}, groups, ["new"], wanted_group=lambda _: False).groups == {}


def test_settings_come_along_and_a_retry_policy_is_named() -> None:
    attributes = {"message.type": "FIFO", "cleanup.policy": "DELETE"}
    plan = planned({"t": TopicConfig("t", 3, 2, 6, "MULTI_TAG", 1, order=True, attributes=attributes)})
    config = plan.topics["new"]["t"]
    assert (config.read_queue_nums, config.write_queue_nums, config.perm, config.order) == (3, 2, 6, True)
    assert (config.topic_filter_type, config.attributes) == ("MULTI_TAG", {"message.type": "FIFO"})
    assert [one.target_queue for one in plan.queues] == [0, 1, 2]
    policy = {"groupName": "g", "groupRetryPolicy": {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"max": 1}}}
    plan = make_plan({"broker-a": {}}, {"broker-a": {"g": policy}}, ["new"])
    assert plan.groups["g"] == {"groupName": "g"}
    assert "retry policy" in plan.left_out["group g"]
