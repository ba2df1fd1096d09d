"""Names of topics that a query may have, and those that are refused with what to do instead."""

from __future__ import annotations

import pytest

from spark_connector.errors import OptionError
from spark_connector.options.parsers import check_mqtt_topic, check_topic


@pytest.mark.parametrize("topic", ["%LMQ%a", "a/b", "a b", ""])
def test_what_no_broker_has_is_refused(topic: str) -> None:
    with pytest.raises(OptionError, match="is not a RocketMQ topic"):
        check_topic(topic, "mqttFilter")


def test_an_mqtt_topic_is_sent_to_its_own_option() -> None:
    check_topic("orders", "mqttFilter")
    with pytest.raises(OptionError, match=r"option 'assign'.*go into the option 'mqttFilter'"):
        check_topic("plant/1", "mqttFilter", "assign")


def test_topics_that_rows_are_written_to() -> None:
    assert check_mqtt_topic("plant/1/temp") == ""
    assert "the server's own" in check_mqtt_topic(b"$SYS/x")
    assert check_mqtt_topic("plant/+") != ""
