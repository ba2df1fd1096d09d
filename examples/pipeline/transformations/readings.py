"""A streaming table fed from the log, and a view over it; Spark works out the order and runs both."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows

spark = SparkSession.active()


@dp.table
def readings() -> DataFrame:
    """Every reading, added to by each update of the pipeline."""
    rows = (
        spark.readStream.format("rocketmq")
        .option("nameServer", spark.conf.get("lightmq.server", "127.0.0.1:9876"))
        .option("mqttFilter", "plant/+/temp")
        .option("startingOffsets", "earliest")
        .load()
    )
    return rows.select(
        F.split("mqttTopic", "/")[1].alias("device"),
        F.get_json_object(F.col("body").cast("string"), "$.celsius").cast("double").alias("celsius"),
        "storeTimestamp",
    )


@dp.materialized_view
def highest() -> DataFrame:
    """The highest reading of each device."""
    return (
        spark.read.table("readings").groupBy("device").agg(F.max("celsius").alias("celsius"), F.count("*").alias("n"))
    )
