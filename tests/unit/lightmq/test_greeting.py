from __future__ import annotations

from lightmq.greeting import part_greeting, up_greeting


def test_the_usual_ports_need_no_options() -> None:
    text = up_greeting({"mqtt": 1883, "remoting": 9876, "admin": 8080}, "lightmq-data")
    assert "lightmq pub -t plant/7/temp" in text
    assert "lightmq tail 'plant/#'\n" in text
    assert '.option("nameServer", "127.0.0.1:9876")' in text


def test_other_ports_appear_in_every_command() -> None:
    text = up_greeting({"mqtt": 1, "remoting": 2, "admin": 3}, "x")
    assert "lightmq sub -p 1 -t" in text
    assert "--server 127.0.0.1:2" in text
    assert "http://127.0.0.1:3/status" in text


def test_options_of_the_snippet_exist() -> None:
    from spark_connector.options import ReadOptions

    assert {"name_server", "mqtt_filter"} <= set(ReadOptions.__dataclass_fields__)


def test_a_part_says_its_ports() -> None:
    assert part_greeting("broker", {"remoting": 1, "admin": 2}).startswith(
        "lightmq broker is ready: remoting port 1, admin port 2"
    )
