"""Codes 100, 101, 102 and 219."""

from __future__ import annotations

from remoting.protocol.route_body import KeyValueTable, decode_body


async def test_entries_are_on_disk_when_they_are_acknowledged(world, another):
    assert (await world.ask(100, namespace="N", key="k", value="v")).code == 0
    assert another().name_server.metadata.key_values == {"N": {"k": "v"}}
    assert (await world.ask(101, namespace="N", key="k")).fields == {"value": "v"}
    table = decode_body((await world.ask(219, namespace="N")).body, KeyValueTable)
    assert table.table == {"k": "v"}
    assert (await world.ask(102, namespace="N", key="k")).code == 0
    assert another().name_server.metadata.key_values == {}


async def test_what_is_absent_and_what_is_missing(world):
    absent = await world.ask(101, namespace="N", key="k")
    assert (absent.code, absent.remark) == (22, "No config item, Namespace: N Key: k")
    assert (await world.ask(219, namespace="N")).code == 22
    missing = await world.ask(100, namespace="N")
    assert (missing.code, "'key'" in missing.remark) == (29, True)
