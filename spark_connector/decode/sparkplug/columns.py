"""The columns of Sparkplug B: one row per message, its metrics in an array, each with its value in a typed member.

Invariant: the order of members is the order in which `sparkplug_bodies` makes them. Pure.
"""

from __future__ import annotations

from pyspark.sql.types import StructType

from spark_connector.decode.ddl import parse_columns
from spark_connector.decode.sparkplug_payload import payload_class

METRIC = (
    "struct<name:string,alias:bigint,timestamp:timestamp,datatype:string,isHistorical:boolean,isTransient:boolean,"
    "isNull:boolean,long:bigint,double:double,boolean:boolean,text:string,bytes:binary,time:timestamp,"
    "properties:map<string,string>,metadata:string>"
)
COLUMNS = (
    "groupId string, messageType string, edgeNodeId string, deviceId string, hostId string, online boolean, "
    f"payloadTimestamp timestamp, seq int, bdSeq int, payloadUuid string, payloadBody binary, metrics array<{METRIC}>, "
    "logPosition bigint"
)


def plan_sparkplug() -> tuple[StructType, None]:
    """Return the columns; OptionError where protobuf is missing."""
    payload_class()
    return parse_columns(COLUMNS), None
