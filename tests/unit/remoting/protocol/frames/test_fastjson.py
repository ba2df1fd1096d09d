"""Old Java clients' JSON: standard bodies read the same, fastjson's forms are read, the rest only violates."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.errors import RemoteViolation
from remoting.protocol.frames import fastjson

PRINTABLE = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=10)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | PRINTABLE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PRINTABLE, inner, max_size=3),
    max_leaves=10,
)


@given(value=VALUES)
def test_standard_json_is_read_the_same_on_both_paths(value):
    text = json.dumps(value)
    assert fastjson.loads(text.encode()) == value
    reader = fastjson._JsonParser(text)
    assert reader.value(0) == value
    reader.expect_end()


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b'{0:"10.0.0.1:10911",1:"b"}', {"0": "10.0.0.1:10911", "1": "b"}),
        (b"{name:'it\\'s',list:[1,2,],x:null}", {"name": "it's", "list": [1, 2], "x": None}),
        (b"{'say':'a \"b\" c'}", {"say": 'a "b" c'}),
        (b" { a : true , b : -1.5 } ", {"a": True, "b": -1.5}),
        (
            b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{"minOffset":1}}}',
            {"offsetTable": {'{"brokerName":"b","queueId":0,"topic":"t"}': {"minOffset": 1}}},
        ),
    ],
)
def test_fastjsons_own_forms(raw, value):
    assert fastjson.loads(raw) == value


def test_object_keys_are_written_as_java_reads_them():
    raw = fastjson.object_keys([({"brokerName": "b", "queueId": 0}, {"maxOffset": 7}), ({"queueId": 1}, 2)])
    assert raw == b'{{"brokerName":"b","queueId":0}:{"maxOffset":7},{"queueId":1}:2}'
    assert fastjson.loads(raw) == {'{"brokerName":"b","queueId":0}': {"maxOffset": 7}, '{"queueId":1}': 2}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"{a}",
        b"{a:}",
        b"[1 2]",
        b"{a:1}x",
        b"nope",
        b"'a",
        b'{"a\\q":1,}',
        b"\xff",
        b"[" * 10_000,
        b"{a:" * 10_000,
    ],
)
def test_what_is_neither(raw):
    with pytest.raises(RemoteViolation):
        fastjson.loads(raw)


@given(raw=st.text(st.sampled_from("{}[]:,'\"a0 \\n-.eE"), max_size=40).map(str.encode) | st.binary(max_size=60))
def test_arbitrary_bytes_only_violate(raw):
    with contextlib.suppress(RemoteViolation):
        fastjson.loads(raw)
