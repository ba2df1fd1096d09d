"""Transactions: their ids, decisions about them, and half messages that producers are asked about.

    transaction id   OFFSET-POSITION-BROKER    of the half message: in the hidden queue and in the log, hexadecimal; the
                                               broker group that has it

With it any proxy can end a transaction. Invariant: `parse_id(transaction_id(a, b, c)) == (a, b, c)`. Pure.
"""

from __future__ import annotations

import re
from typing import Any

from grpc_proxy.mapping.statuses import CallRejected, Code
from grpc_proxy.stubs import definition

_ID = re.compile(r"([0-9A-F]{1,15})-([0-9A-F]{1,15})(?:-(.{1,255}))?\Z")
_POSITION_DIGITS = 16
COMMIT, ROLL_BACK = "8", "12"
"""Values of `commitOrRollback`."""


def transaction_id(offset: int, message_id: str, broker: str) -> str:
    """Return the id of a transaction from the answer to its send: queue offset and offset message id."""
    return f"{offset:X}-{int(message_id[-_POSITION_DIGITS:], 16):X}-{broker}"


def checked_id(offset: str, position: str, broker: str) -> str:
    """Return the id of a transaction from the fields of CHECK_TRANSACTION_STATE."""
    return f"{int(offset):X}-{int(position):X}-{broker}"


def parse_id(text: str) -> tuple[int, int, str]:
    """Return (offset, position, broker); an id from before there were several broker groups has no broker.

    CallRejected(INVALID_TRANSACTION_ID) for any other text.
    """
    found = _ID.match(text)
    if found is None:
        raise CallRejected(Code.INVALID_TRANSACTION_ID, "the transaction id is malformed")
    return int(found[1], 16), int(found[2], 16), found[3] or ""


def decision_fields(request: Any, topic: str) -> dict[str, str]:
    """Return the fields of END_TRANSACTION. CallRejected for a malformed id or an unknown resolution."""
    outcomes = definition.TransactionResolution
    wanted = {outcomes.COMMIT: COMMIT, outcomes.ROLLBACK: ROLL_BACK}.get(request.resolution)
    if wanted is None:
        raise CallRejected(Code.BAD_REQUEST, f"the resolution {request.resolution} is neither COMMIT nor ROLLBACK")
    offset, position, _broker = parse_id(request.transaction_id)
    is_check = request.source == definition.TransactionSource.SOURCE_SERVER_CHECK
    return {
        "producerGroup": topic, "topic": topic, "tranStateTableOffset": str(offset), "commitLogOffset": str(position),
        "commitOrRollback": wanted, "fromTransactionCheck": str(is_check).lower(), "msgId": request.message_id,
        "transactionId": request.transaction_id,
    }  # fmt: skip
