"""Lists the modules of this package that are typed: compiled with the `.pxd` beside them where that is possible."""

from pathlib import Path

import remoting
from remoting.native.choice import why_unusable
from remoting.native.typed import typed

TYPED = typed(
    Path(__file__).parent,
    (
        "traffic",
        "grants",
        "delivery.record_cache",
        "sessions.client",
        "sessions.connecting",
        "delivery.delivery",
        "sessions.qos2",
        "publishing.inbound",
        "link",
        "access.permissions",
        "mqtt.session.in_flight",
        "publishing.publisher",
        "delivery.source",
        "listening.connection",
        "mqtt.session.answers",
        "mqtt.session.deliveries",
        "mqtt.codec.publish",
        "mqtt.session.session",
        "mqtt.session.session_state",
    ),
    upon=(remoting.TYPED,),
)

WITHOUT_SCAN = TYPED.reason or why_unusable(Path(__file__).parent / "mqtt" / "session", ("compiled_scan",))
"""Why the compiled scan of packets cannot be used, "" when it can: it accesses fields of the typed classes."""
