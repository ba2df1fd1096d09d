"""Codes of the requests that the console makes for operators, beside those that `RequestCode` names.

Values only.
"""

from __future__ import annotations


class OperatorCode:
    """What brokers answer for operators; every answer is JSON."""

    RETAINED_LIST = 9113
    RETAINED_CLEAR = 9114
    TOPIC_TREE = 9115
    AUDIT_LIST = 9116
    SPARK_QUERIES = 9118
    TRACE_MESSAGE = 9119
    ACCESS_TEST = 9120
    QUOTAS = 9121
    DEAD_LETTERS = 9122
    RESEND_DEAD_LETTER = 9123
    ACCESS_RULES = 9126
