"""Tables and views over topics with real SQL: created, read in batches and streams, inserted into."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightmq.spark import register_topics
from remoting.protocol.errors import LocalMisuse
from tests.interop.spark_scenario import Frames, Publish, numbers

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(240)]


@pytest.fixture
def sql(spark: Any) -> Iterator[Any]:
    """`spark.sql` in a separate database for each test."""
    name = f"tables_{uuid.uuid4().hex}"
    spark.sql(f"CREATE DATABASE {name}")
    spark.sql(f"USE {name}")
    yield spark.sql
    spark.sql("USE default")
    spark.sql(f"DROP DATABASE {name} CASCADE")


def test_a_table_of_a_topic(spark: Any, sql: Any, load: Frames, server: str, tmp_path: Path) -> None:
    rows = spark.range(6).selectExpr("cast(id AS string) AS value", "concat('k', id % 2) AS key")
    rows.write.format("rocketmq").mode("append").options(nameServer=server, topic="tabled").save()
    sql(
        f"CREATE TABLE orders USING rocketmq OPTIONS (nameServer '{server}', topic 'tabled', delayMs 0) "
        "COMMENT 'all of them' TBLPROPERTIES ('team' = 'shop')"
    )
    assert numbers(sql("SELECT * FROM orders")) == list(range(6))
    assert sql("SELECT count(*) AS n FROM orders WHERE key = 'k1'").head().n == 3
    assert numbers(spark.table("orders")) == list(range(6))
    sql("INSERT INTO orders (body, key) SELECT cast('6' AS binary), 'k0'")
    sql("INSERT INTO orders (body) VALUES (cast('7' AS binary))")
    assert numbers(spark.table("orders")) == list(range(8))
    sql("CREATE VIEW evens AS SELECT * FROM orders WHERE cast(cast(body AS string) AS int) % 2 = 0")
    assert numbers(spark.table("evens")) == [0, 2, 4, 6]
    stream = spark.readStream.option("startingOffsets", "earliest").table("orders")
    writer = stream.select("body").writeStream.format("rocketmq").options(nameServer=server, topic="tabled-copy")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert numbers(spark.read.format("rocketmq").options(nameServer=server, topic="tabled-copy").load()) == list(
        range(8)
    )
    sql("DROP TABLE orders")


def test_a_table_of_a_filter_is_inserted_into_by_topic(sql: Any, publish: Publish, server: str) -> None:
    publish("insert/1", range(3))
    sql(f"CREATE TABLE readings USING rocketmq OPTIONS (nameServer '{server}', mqttFilter 'insert/+', qos '0')")
    sql("INSERT INTO readings (mqttTopic, body) VALUES ('insert/2', cast('3' AS binary))")
    rows = sql(
        "SELECT mqttTopic, qos, cast(body AS string) AS body FROM readings WHERE mqttTopic = 'insert/2'"
    ).collect()
    assert [tuple(row) for row in rows] == [("insert/2", 0, "3")]
    assert numbers(sql("SELECT * FROM readings")) == [0, 1, 2, 3]
    sql("DROP TABLE readings")


def test_wrong_tables_are_refused_with_the_nearest_name(sql: Any, server: str) -> None:
    with pytest.raises(Exception, match="unknown option 'nameservr'; did you mean 'nameServer'"):
        sql(f"CREATE TABLE wrong USING rocketmq OPTIONS (nameServr '{server}', topic 'tabled')")
    with pytest.raises(Exception, match="option 'sinkId' does nothing in a table"):
        sql(f"CREATE TABLE named USING rocketmq OPTIONS (nameServer '{server}', topic 'tabled', sinkId 's')")
    sql(f"CREATE TABLE listed (body BINARY) USING rocketmq OPTIONS (nameServer '{server}', topic 'tabled')")
    with pytest.raises(Exception, match="only when it is made without a list of columns"):
        sql("SELECT * FROM listed").collect()
    with pytest.raises(Exception, match="make the table first, then INSERT INTO it"):
        sql(f"CREATE TABLE filled USING rocketmq OPTIONS (nameServer '{server}', topic 'tabled') AS SELECT '1' AS body")
    sql("DROP TABLE listed")


def test_temporary_views(sql: Any, publish: Publish, server: str) -> None:
    publish("viewed/1", range(3))
    sql(f"CREATE OR REPLACE TEMPORARY VIEW viewed USING rocketmq OPTIONS (nameServer '{server}', mqttTopic 'viewed/1')")
    sql("INSERT INTO viewed (body) VALUES (cast('3' AS binary))")
    assert numbers(sql("SELECT * FROM viewed")) == [0, 1, 2, 3]
    sql("DROP VIEW viewed")


def test_every_topic_is_registered(spark: Any, load: Frames, publish: Publish, server: str, tmp_path: Path) -> None:
    publish("registered-1/a", range(2))
    publish("registered_2/a", range(3))
    found = register_topics(spark, "registered.*", nameServer=server, includeProperties=False)
    assert found == ["registered-1", "registered_2"]
    assert numbers(spark.sql("SELECT * FROM `registered-1`")) == [0, 1]
    assert numbers(spark.sql("SELECT * FROM registered_2 WHERE mqttTopic = 'registered_2/a'")) == [0, 1, 2]
    assert "properties" not in spark.table("registered_2").columns
    assert register_topics(spark, "registered_2", streaming=True, nameServer=server, startingOffsets="earliest")
    writer = spark.table("registered_2").select("body").writeStream.format("rocketmq")
    writer = writer.options(nameServer=server, mqttTopic="registered/copy").option("checkpointLocation", str(tmp_path))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    assert numbers(load(mqttFilter="registered/copy")) == [0, 1, 2]
    with pytest.raises(LocalMisuse, match="2 topics match 'registered\\[-_\\]\\.\\*', at most 1 are registered"):
        register_topics(spark, "registered[-_].*", nameServer=server, topics_max=1)
    for name in ("`registered-1`", "registered_2"):
        spark.catalog.dropTempView(name)
