"""The option table: names without case, nearest names, typed values, and the page generated from it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_connector.errors import OptionError
from spark_connector.options import option_table
from spark_connector.options.read_write import parse_read, parse_write
from tools.spark_options_reference import PAGE, render


def test_names_are_read_without_case_and_aliases_work() -> None:
    parsed = parse_read({"NAMESRVADDR": "a:1;[::1]:2", "subscribe": "t1, t2", "maxoffsetspertrigger": "5"})
    assert parsed.name_server == (("a", 1), ("::1", 2))
    assert parsed.topic == ("t1", "t2")
    assert parsed.max_offsets_per_trigger == 5
    assert parsed.fail_on_data_loss


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": "t", "startingOffset": "latest"}, "did you mean 'startingOffsets'"),
        ({"topic": "t", "qos": "1"}, "'qos' is only for writing"),
        ({"topic": "t", "maxOffsetsPerTrigger": "0"}, "above 0"),
        ({"topic": "t", "maxOffsetsPerTrigger": "ten"}, "whole number"),
        ({"topic": "t", "failOnDataLoss": "perhaps"}, "true or false"),
        ({"topic": "t", "nameServer": "nowhere"}, "'nowhere' is not host:port"),
        ({"topic": "t", "subscribe": "u"}, "given twice"),
        ({"topic": "t", "mqttFilter": "a/#"}, "topic and mqttFilter are set"),
        ({}, "none is set"),
        ({"topic": "t", "subscribePattern": "t.*"}, "topic and topicPattern are set"),
        ({"topicPattern": "t("}, "no regular expression"),
        ({"topic": "t", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "above 'maxOffsetsPerTrigger'"),
        ({"topic": "t", "maxTriggerDelay": "soon"}, "500ms, 30s, 15m or 1h"),
        ({"topic": "t", "accessKey": "a"}, "belong together"),
        ({"topic": "t", "accesKey": "a"}, "did you mean 'accessKey'"),
        ({"topic": "t", "startingOffsets": "first"}, "earliest, latest or JSON"),
        ({"topic": "t", "assign": '{"t": [0]}'}, "topic and assign are set"),
        ({"assign": "t"}, r"'assign' = 't': JSON \{topic"),
        ({"topic": "t", "subExpression": "a ||"}, "option 'tag' = 'a ||'"),
        ({"topic": "t", "sql": "a >"}, "option 'sql' = 'a >': SQL expression"),
        ({"topic": "t", "sqlExpresion": "a > 1"}, "did you mean 'sqlExpression'"),
        (
            {"topic": "t", "kafka.bootstrap.servers": "h:1"},
            "the address .* is the option 'nameServer' here",
        ),
        ({"topic": "t", "kafka.group.id": "g"}, "is the option 'consumerGroup' here\\."),
        ({"topic": "t", "groupIdPrefix": "g"}, "queries need no group here"),
        ({"topic": "t", "fetchOffset.numRetries": "3"}, "it is the option 'fetchRetries' here"),
        ({"topic": "t", "kafka.sasl.mechanism": "PLAIN"}, "'accessKey' and 'secretKey'"),
        ({"topic": "t", "kafka.fetch.min.bytes": "1"}, "leave it out"),
        ({"topic": "t", "zzz": "1"}, "unknown option 'zzz'\\. Options are listed in docs/spark-options.md\\.$"),
        ({"topic": "t", "schema": "kafka", "decode": "json", "decodeSchema": "a int"}, "no decoded bodies"),
        ({"topic": "t", "startingOffsetsByTimestamp": "monday"}, "ms since 1970"),
        ({"topic": "t", "startingOffsetsByTimestampStrategy": "eror"}, "did you mean 'error'"),
        (
            {"topic": "t", "includeProperties": "false", "columns": "body,properties"},
            "'includeProperties' = false",
        ),
        ({"topic": "t", "consumerGroup": ""}, "'consumerGroup' = '': 1 to 120 letters"),
        ({"topic": "t", "group": "a b"}, "'consumerGroup' = 'a b': 1 to 120 letters"),
        ({"topic": "t", "consumerGroup": "g" * 121}, "1 to 120 letters"),
        ({"topic": "t", "consumerGroup": "CID_RMQ_SYS_x"}, "the server's own"),
        ({"topic": "t", "tag": "a | b"}, "divided by ' \\|\\| '"),
        ({"topicPattern": ""}, "'.*' matches every topic"),
        ({"topic": "t", "minPartitions": "100001"}, "at most 100000 tasks"),
        ({"topic": "t", "decodeMode": "failfast"}, "'decodeMode' does nothing without the option 'decode'"),
        ({"topic": "t", "inferSchemaRows": "9"}, "'inferSchemaRows' does nothing without the option 'inferSchema'"),
        (
            {"topic": "t", "startingOffsetsByTimestampStrategy": "latest"},
            "does nothing without the option 'startingOffsetsByTimestamp' or 'startingTimestamp'",
        ),
        ({"topic": "t", "maxTriggerDelay": "5s"}, "'maxTriggerDelayMs' does nothing without .* 'minOffsetsPerTrigger'"),
        ({"topic": "t", "decodeColumn": "a.b"}, "without dots and backquotes"),
        ({"topic": "t", "decodeColumn": ""}, "the name of a column is needed"),
        ({"topic": "t", "schemaLocation": "s3a://bucket/x"}, r"does not know the file systems of Hadoop \(s3a\)"),
        ({"topic": "t", "schemaLocation": "dbfs:/x"}, r"file systems of Hadoop \(dbfs\)"),
        ({"topic": "t", "decodeSchema": "hdfs://n/x.avsc"}, r"file systems of Hadoop \(hdfs\)"),
        ({"topic": "t", "tls": "true", "tlsCaFile": "s3://b/ca.pem"}, r"file systems of Hadoop \(s3\)"),
        ({"topic": "t", "timestampUnit": "ms"}, "'timestampUnit' needs the option 'decode'"),
        ({"topic": "t", "timestampUnit": "minutes"}, "one of s, ms, us, ns"),
        ({"topic": "t", "timestampFormat": "EEE yyyy"}, "'EEE' is none of yyyy, MM"),
        ({"topic": "t", "timestampFormat": "HH:mm"}, "a form with a year"),
        ({"topic": "t", "timestampFormat": "yyyy yyyy"}, "in it twice"),
        ({"topic": "t", "timestampFormat": "yyyy'T"}, "a quote in it has no end"),
    ],
)
def test_what_a_reader_is_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        parse_read(options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mqttTopc": "a"}, "did you mean 'mqttTopic'"),
        ({"delivery": "twice"}, "one of exactly-once, at-least-once"),
        ({"txnAppId": "a"}, "belong together"),
        ({"topic": "a", "mqttTopic": "b"}, "not both"),
        ({"qos": "3"}, "0, 1 or 2"),
        ({"secretKey": "s"}, "belong together"),
        ({"startingOffsets": "latest"}, "only for reading"),
        ({"sinkId": ""}, "'sinkId' = '': 1 to 255 bytes"),
        ({"sinkId": "s" * 256}, "1 to 255 bytes"),
        ({"txnAppId": "", "txnVersion": "1"}, "'txnAppId' = '': 1 to 255 bytes"),
        ({"topic": "t", "qos": "1"}, "'qos' is for MQTT topics"),
        ({"topic": "t", "retain": "false"}, "'retain' is for MQTT topics"),
        ({"topic": "t", "batchRows": "5"}, "'batchRows' does nothing without the option 'batchCodec'"),
        ({"delivery": "at-least-once", "sinkId": "s"}, "'sinkId' does nothing with the option 'delivery'"),
        ({"delivery": "at-least-once", "replayMismatch": "skip"}, "'replayMismatch' does nothing with"),
        ({"contentType": "text/plain\nx"}, "without control characters"),
    ],
)
def test_what_a_writer_is_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        parse_write(options)


def test_files_are_named_by_paths_and_by_urls_of_files() -> None:
    """A colon alone makes no URL; a Spark SQL schema is none either."""
    for text, path in (("file:///a/b", "/a/b"), ("file:/a", "/a"), ("a:b/c", "a:b/c"), ("C:/x", "C:/x")):
        assert option_table.local_path(text) == path
    for schema in (
        "a struct<b:int>",
        '{"type":"record"}',
        '"s3://x"',
        "file:string, n:int",
        "FILE : string",
        "x int, file:string",
    ):
        assert option_table.schema_or_path(schema) == schema
    assert option_table.schema_or_path("file:/a.avsc") == "/a.avsc"
    with pytest.raises(ValueError, match="from the root"):
        option_table.local_path("file:a")


def test_sparks_own_options_are_let_through() -> None:
    assert parse_write({"checkpointlocation": "/somewhere", "delivery": "AT_LEAST_ONCE"}).delivery == "at-least-once"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == render(), "regenerate it: python -m tools.spark_options_reference"


def test_a_secret_signs_and_is_never_printed() -> None:
    parsed = parse_read({"topic": "t", "accessKey": "mine", "secretKey": "hidden"})
    assert parsed.signer is not None
    assert parsed.signer.secret == "hidden"
    assert "hidden" not in repr(parsed)
    assert parse_write({"topic": "t"}).signer is None


def test_batches_need_a_topic_and_have_a_size() -> None:
    parsed = parse_write({"batchCodec": "zstd", "topic": "t", "batchRows": "100"})
    assert (parsed.batch_codec, parsed.batch_rows) == ("zstd", 100)
    assert parse_write({"topic": "t"}).batch_codec is None
    for wrong, said in (
        ({"batchCodec": "lz4"}, "needs the option 'topic'"),
        ({"batchCodec": "lz4", "mqttTopic": "a/b"}, "needs the option 'topic'"),
        ({"batchCodec": "gzip", "topic": "t"}, "batchCodec"),
        ({"batchCodec": "lz4", "topic": "t", "batchRows": "65537"}, "at most 65536"),
    ):
        with pytest.raises(OptionError, match=said):
            parse_write(wrong)


@pytest.mark.parametrize("parse", [parse_read, parse_write])
def test_tls_options_without_effect_are_refused(parse: Callable[[dict[str, str]], object]) -> None:
    """A certificate file is given for security, which there would not be without `tls`."""
    for name, value in (("tlscafile", "/ca"), ("tlsservername", "n"), ("tlsinsecureskipverify", "true")):
        with pytest.raises(OptionError, match="does nothing without the option 'tls'"):
            parse({"topic": "t", name: value})
    with pytest.raises(OptionError, match="tlsCertificateFile"):
        parse({"topic": "t", "tls": "true", "tlskeyfile": "/key"})
    parse({"topic": "t", "tls": "true", "tlscafile": "/ca"})
