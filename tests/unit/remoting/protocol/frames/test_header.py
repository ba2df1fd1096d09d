"""Header codecs: both serialisations round-trip, real clients' forms are accepted, and only violations are raised."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.errors import LocalMisuse, RemoteViolation
from remoting.protocol.frames.commands import SERIALIZE_JSON, SERIALIZE_ROCKETMQ, Command
from remoting.protocol.frames.frame import LANGUAGES, decode_header, encode_header

TEXT = st.text(max_size=30).filter(lambda text: text.isprintable())
I32 = st.integers(-(2**31), 2**31 - 1)


def commands(serialize_type: int) -> st.SearchStrategy[Command]:
    """Commands whose every member fits the serialisation."""
    code = st.integers(0, 300_000) if serialize_type == SERIALIZE_JSON else st.integers(0, 3000)
    return st.builds(
        Command,
        code=code,
        opaque=I32,
        flag=st.integers(0, 3),
        remark=st.none() | TEXT.filter(bool),
        fields=st.dictionaries(TEXT, TEXT, max_size=8),
        language=st.sampled_from(LANGUAGES),
        version=st.integers(0, 1000),
        serialize_type=st.just(serialize_type),
    )


@given(command=st.one_of(commands(SERIALIZE_JSON), commands(SERIALIZE_ROCKETMQ)))
def test_round_trip(command):
    assert decode_header(command.serialize_type, encode_header(command)) == command


@pytest.mark.parametrize(
    ("value", "text"), [("1", "1"), (1, "1"), (-5, "-5"), (True, "true"), (False, "false"), (1.5, "1.5"), ("ü", "ü")]
)
def test_scalar_field_values_become_text(value, text):
    raw = json.dumps({"code": 10, "extFields": {"k": value}}).encode()
    assert decode_header(SERIALIZE_JSON, raw).fields == {"k": text}


@pytest.mark.parametrize(
    ("member", "value", "read"),
    [
        ("language", 9, "GO"),
        ("language", 99, "OTHER"),
        ("language", -1, "OTHER"),
        ("language", True, "OTHER"),
        ("language", None, "OTHER"),
        ("version", "479", 479),
        ("version", None, 0),
        ("code", "11", 11),
        ("opaque", "7", 7),
        ("opaque", None, 0),
        ("flag", "2", 2),
        ("flag", None, 0),
        ("remark", 5, "5"),
        ("serializeTypeCurrentRPC", 0, None),
    ],
)
def test_members_of_other_types_are_read_as_rocketmq_reads_them(member, value, read):
    raw = {"code": 10, "opaque": 3, "flag": 0, "language": "CPP", "extFields": {"a": "1", "b": "true", "c": "null"}}
    command = decode_header(SERIALIZE_JSON, json.dumps(raw | {member: value}).encode())
    assert getattr(command, member, None) == read
    assert command.fields == raw["extFields"], "text stays text"


def test_null_field_values_and_absent_members():
    command = decode_header(SERIALIZE_JSON, b'{"code":10,"extFields":{"k":null},"unknown":[1]}', b"body")
    assert command == Command(10, body=b"body", language="JAVA", version=0)
    assert decode_header(SERIALIZE_JSON, b'{"code":10,"extFields":null,"remark":null}').fields == {}


def test_an_id_of_zero_is_written():
    # Java numbers its requests from 0, and gives an answer without an id one of its own, which matches no request.
    raw = json.loads(encode_header(Command(0, flag=1)))
    assert (raw["opaque"], raw["flag"], raw["version"], raw["language"]) == (0, 1, 479, "PYTHON")


@pytest.mark.parametrize("real", [200_050, 200_051, 200_053, 200_054, 200_151])
def test_codes_above_16_bits_survive_the_binary_form(real):
    raw = encode_header(Command(real, serialize_type=SERIALIZE_ROCKETMQ))
    assert int.from_bytes(raw[:2], "big") == real - 196_608
    assert decode_header(SERIALIZE_ROCKETMQ, raw).code == real


def test_a_response_code_is_never_unwrapped():
    raw = encode_header(Command(3442, flag=1, serialize_type=SERIALIZE_ROCKETMQ))
    assert decode_header(SERIALIZE_ROCKETMQ, raw).code == 3442


def test_unknown_language_becomes_other_in_the_binary_form():
    raw = encode_header(Command(10, language="COBOL", serialize_type=SERIALIZE_ROCKETMQ))
    assert decode_header(SERIALIZE_ROCKETMQ, raw).language == "OTHER"
    assert decode_header(SERIALIZE_ROCKETMQ, raw[:2] + b"\x7f" + raw[3:]).language == "OTHER"


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"{", b'{"code":"x"}', b'{"opaque":1}', b'{"code":1,"extFields":{"a":[]}}', b"\xff", b"[" * 100_000],
)
def test_malformed_json(raw):
    with pytest.raises(RemoteViolation, match="malformed JSON header"):
        decode_header(SERIALIZE_JSON, raw)


def test_malformed_binary():
    good = encode_header(Command(10, remark="r", fields={"key": "value"}, serialize_type=SERIALIZE_ROCKETMQ))
    for cut in range(len(good)):
        with pytest.raises(RemoteViolation):
            decode_header(SERIALIZE_ROCKETMQ, good[:cut])
    with pytest.raises(RemoteViolation, match="do not end with the header"):
        decode_header(SERIALIZE_ROCKETMQ, good + b"x")
    with pytest.raises(RemoteViolation, match="malformed"):
        decode_header(SERIALIZE_ROCKETMQ, good.replace(b"value", b"\xff\xff\xff\xff\xff"))


@given(raw=st.binary(max_size=200), serialize_type=st.integers(0, 3))
def test_arbitrary_bytes_only_violate(raw, serialize_type):
    with contextlib.suppress(RemoteViolation):
        decode_header(serialize_type, raw)


@pytest.mark.parametrize(
    "command",
    [
        Command(1, serialize_type=2),
        Command(1, fields={"k": "\ud800"}),
        Command(1, fields={"k": 1}, serialize_type=SERIALIZE_ROCKETMQ),
        Command(1, fields={"k" * 40_000: ""}, serialize_type=SERIALIZE_ROCKETMQ),
        Command(1, remark="\ud800", serialize_type=SERIALIZE_ROCKETMQ),
        Command(1, opaque=2**31, serialize_type=SERIALIZE_ROCKETMQ),
    ],
)
def test_what_cannot_be_written_is_our_callers_fault(command):
    with pytest.raises(LocalMisuse):
        encode_header(command)
