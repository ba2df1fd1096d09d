"""Sparkplug payloads for the tests: made with the declared message, and a few by hand."""

from __future__ import annotations

import base64
from typing import Any

from spark_connector.decode.sparkplug.payload import DATATYPES, payload_class

AT_MS = 1_486_144_502_122
"""The time of the specification's examples."""


def metric(payload: Any, name: str | None = None, datatype: str | None = None, **fields: Any) -> Any:
    """Add a metric; the value goes into the field of this name."""
    made = payload.metrics.add()
    if name is not None:
        made.name = name
    if datatype is not None:
        made.datatype = DATATYPES.index(datatype)
    for key, value in fields.items():
        setattr(made, key, value)
    return made


def payload(seq: int | None = 0, timestamp: int = AT_MS) -> Any:
    """A payload without metrics."""
    made = payload_class()(timestamp=timestamp)
    if seq is not None:
        made.seq = seq
    return made


def birth(**metrics: tuple[int, str]) -> bytes:
    """A birth certificate with name=(alias, data type)."""
    made = payload()
    for name, (alias, datatype) in metrics.items():
        metric(made, name, datatype, alias=alias, is_null=True)
    return made.SerializeToString()  # type: ignore[no-any-return]


def data(seq: int, **values: Any) -> bytes:
    """A data message by aliases: a7=5 is alias 7 with the whole number 5, or a number with a point, or a text."""
    made = payload(seq)
    for alias, value in values.items():
        kind = {int: "int_value", float: "double_value", str: "string_value"}[type(value)]
        metric(made, alias=int(alias[1:]), timestamp=AT_MS + 1, **{kind: value})
    return made.SerializeToString()  # type: ignore[no-any-return]


FOREIGN_BIRTH = base64.b85decode(
    r"2>XKjo53>@6bb}MPE<G$0T}y&`<uZtAOTSO0TLDp1xZd+F*Xna82f_zo53?60#MZb0}>bt1xZd+GcphZ82f_zo53?615l9N`~MFT"
    r"9SQ|WPE<BD5Cj<eg8Q4nGav+5fPjF2fZ+fC{{a#e3I$b3PE<G$1sMB+`<uZtAO%p!0TLGq231K;R53OX1{nK-`<uZtAO=w2)B_S3"
    r"3I<h4PE<285C<6hg8Q4nGav_0fY7Y-4iX*;231K;R5mma2pIc<`<uZtAP89h|NsC0|NsC00TLGq1x8FyK~xY482f_zo53?631t8P"
    r"z&{ck3I;?^RYFWf5DFOkg8Q4nGaw3SnwgoInVGr25*7*vLQhXjML|vw3mE%?`<uZtAPaB-5*!K!Q&dt(PDc<782f_zo53?640;E2"
    r"Wq5QT!@Lq43J63&R7F%tO+^q582f_zo53?64Oshv`<uZt5)=vqR7F@+5Dpmog8Q4nGawFn0dx{K3ItVENkkA282f_zo53?64|*gq"
    r"F)=YQF)=YMGBPqUEi*GSGc7bUG&C(WH8nLgH8nLgH8nL77YYSJSyV++5D^&rg8Q4nGawOy0RjO35)}#rMoCOX5E2;sg8Q4nGawRz"
    r"0Rd(b9103aPE<HwK~hpdSr8T&`-1zM!80Hhf&l{QdlDZC3rS8?F*aX8Qc^)#5EmHxg8Q4nGawg&0R+&BFm)0m3JXb2R5LPPK~hpd"
    r"Sr8Z)`-1zM!80Hjf&mEs|NsB`ugek=BMJ*iPE<BDUqMn*L0J$P82f_zo53?68G-=_&IWR<7@WGq5*-Q)RY^`%IA1|hQbAb|8W{V6"
    r"`<uZtAR2-J0vGxcAPNjsNlsKTHeW$fQbAb|8yNe7`<uZtARB@K1Rem0%n~FD3{^=^R5LPPK~hpdSr8l;`-1zM!80Hnf&mCL0000<"
    r"`&GmeED8)&NlsKYG+#kdQbAb|9T@w9`<uZtARU4M5HtV)000000RR90|NsC0{}Lk#3r0*&K~!HsQc^)#5FQx&g8Q4nGaw#<0SKgU"
    r"oj;havO*Fh3JgR~RYFWfUqMn*L0J$V82f_zo53?6AA$i0*P;bzTeT=a5+e!?LQhXjML|wqK~hpdSr8x?`-1zM!80Hrf&m5$0000q"
    r"&=MvJ3{zB6Nlr&!K~hpdSr8!@`-1zM!80Hsf&mIaLPG#(Wo&G301_q&4n#pzMN~;mMPETuQbAb|A{hIE`<uZtAR>YR2z$YP6Py76"
    r"02lx"
)
"""An NBIRTH with a metric of every data type, each with its number as alias, encoded by pysparkplug 0.6.1."""
FOREIGN_DATA = base64.b85decode(
    r"2>XKjo53>@3=jbr`-1zM!81_%0TK-m0vP*(`<uZtP}Kbc5)Tjq82f_zo53?sklp+L4-ym*1Q`2*`<uZtSb%_lfPmot|Nj9J3=jnv"
    r"`-1zM!81_E0TK-m1{nK-`<uZtP~g-95)Tju82f_zo53?sfY7Y-4iXd)2pIc<`<uZtSpWb3|NsC0|Nj9J4iE_#`-1zM!82t50Kh*I"
    r"5)cX)`-1zM!82)^nVFfHnYq6b3lIw!`-1zM!833H5)u#$82f_zo53@B2Xtk4bRfgL5)cp#82f_zo53?!`-1zM!7~yJ5Dpmog8Q4n"
    r"GkO7Z5-$)B82f_zo53@BBr!2DF)=YQF)cDOGBPbQGcz+SG&D3cEj2YYH8nLgH8nLgH4+XG5g7Y|`<uZtf&l^m{}K%l5*Yh}`<uZt"
    r"f&l?$5)Kd+82f_zo53@J0RriJ5)cp<82f_zo53@J0R+&BFm)0X5EvNyg8Q4nGlBsK|NsC0`mf6p5)=>_82f_zo53@J0SL|pa;zAf"
    r"y2KI=5E>Z!g8Q4nGlBsE7y1$q5E~f#g8Q4nGlBsG9sr2U5)=>|82f_zo53@J0SGhz002q*Rm2h;5FHr%g8Q4nGlBsSGynhq00000"
    r"|NsC0|NsC05)=>~82f_zo53@J0SKgUoj;havO*FR5FZ%(g8Q4nGlBsK*P;bzTeT=a5)u#~82f_zo53@J0R{{J001=55*83482f_z"
    r"o53@J0SZAvLjY)HY;11;5)=?382f_zo53@J0SJ4+eiNJl000;P"
)
"""The same values as NDATA, by aliases and without types."""
FOREIGN_VALUES: dict[str, Any] = {
    "Int8": -5, "Int16": -300, "Int32": -70000, "Int64": -(2**40), "UInt8": 200, "UInt16": 60000, "UInt32": 4 * 10**9,
    "UInt64": str(2**64 - 1), "Float": 1.5, "Double": -0.1, "Boolean": True, "String": "text ü",
    "DateTime": 1769853600123, "Text": "t", "UUID": "11111111-2222-3333-4444-555555555555", "Bytes": b"\0\xff",
    "File": b"f", "Int8Array": "[-23,123]", "Int16Array": "[-30000,30000]", "Int32Array": "[-1,315338746]",
    "Int64Array": "[-4270929666821191986]", "UInt8Array": "[23,250]", "UInt16Array": "[30,52360]",
    "UInt32Array": "[52,3293969225]", "UInt64Array": "[52,18446744073709551615]",
    "FloatArray": "[1.2300000190734863,89.34100341796875]", "DoubleArray": "[12.354213]",
    "BooleanArray": "[false,false,true,true,false,true,false,false,true,true,false,true]",
    "StringArray": '["ABC","hello"]', "DateTimeArray": "[1769853600123]",
}  # fmt: skip
"""What is in both, by data type."""
