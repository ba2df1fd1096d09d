"""Who a CONNECT speaks for: methods asked in their configured order, the first that feels responsible decides.

    a method answers   an identity: let in        Unproven: kept out, nobody else is asked        None: not mine
    nobody's           without user name, or without any method, from loopback: anonymous; everybody else: denied

Invariants: fails closed; a method that breaks keeps out. Every answer is counted, every refusal logged without secrets.
Loop rule: one loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

from mqtt_proxy.metrics import AccessCounters
from remoting.access.rules import Identity, Shown, Unproven
from runtime.files import WatchedFile
from runtime.logs import get_logger


class Waits(Enum):
    """What stands for an answer that has to be waited for."""

    LATER = "later"


class Method(Protocol):
    """One way to prove who one is."""

    name: str
    """As in the configuration, and as metric label."""

    def at_hand(self, shown: Shown) -> Identity | Unproven | Waits | None:
        """What `check` would answer, if that can be said without waiting; else `Waits.LATER`, and nothing was done."""

    async def check(self, shown: Shown) -> Identity | Unproven | None:
        """Whom this proves, why it does not, or None when it is not for this method to say."""

    def refresh(self) -> None:
        """Files may have changed."""

    def files(self) -> Sequence[WatchedFile[Any]]:
        """Files the gate has to watch for it."""

    async def close(self) -> None:
        """Stop what runs beside the loop."""


class Authenticator:
    """The chain of methods."""

    def __init__(self, methods: Sequence[Method], counters: AccessCounters) -> None:
        self._methods = methods
        self._counters = counters
        self._log = get_logger("mqtt_proxy.auth")

    def at_hand(self, shown: Shown) -> Identity | Unproven | None:
        """What `authenticate` would answer, if that can be said without waiting; None when it cannot.

        Whoever comes with nothing to prove, or with what was proved a moment ago, costs no task.
        """
        for method in self._methods:
            answer = method.at_hand(shown)
            if answer is Waits.LATER:
                return None
            if answer is not None:
                return self._answered(answer, method, shown)
        return self._nobodys(shown)

    async def authenticate(self, shown: Shown) -> Identity | Unproven:
        """The identity of a CONNECT, or why there is none."""
        for method in self._methods:
            answer = await method.check(shown)
            if answer is not None:
                return self._answered(answer, method, shown)
        return self._nobodys(shown)

    def _answered(self, answer: Identity | Unproven, method: Method, shown: Shown) -> Identity | Unproven:
        if isinstance(answer, Identity):
            self._counters.authentications.child("accepted", method.name).value += 1
            return answer
        self._counters.authentications.child(answer.value, method.name).value += 1
        self._log.warning(
            "mqtt_authentication_failed",
            user=shown.username,
            peer=shown.address,
            method=method.name,
            result=answer.value,
        )
        return answer

    def refresh(self) -> None:
        """Files may have changed."""
        for method in self._methods:
            method.refresh()

    def files(self) -> list[WatchedFile[Any]]:
        """What has to be watched."""
        return [file for method in self._methods for file in method.files()]

    async def close(self) -> None:
        """Stop what runs beside the loop."""
        for method in self._methods:
            await method.close()

    def _nobodys(self, shown: Shown) -> Identity | Unproven:
        if shown.username is not None and self._methods:
            result = "no_method"
        elif not shown.loopback:
            result = "not_loopback"
        else:
            self._counters.authentications.child("anonymous", "none").value += 1
            return Identity(shown.username or "", anonymous=True, client_id=shown.client_id)
        self._counters.authentications.child(result, "none").value += 1
        self._log.warning("mqtt_authentication_failed", user=shown.username, peer=shown.address, result=result)
        return Unproven.DENIED
