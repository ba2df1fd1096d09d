"""Says which modules of this package are typed: compiled with the `.pxd` beside them where that is possible."""

from pathlib import Path

import remoting
from remoting.hot.typed import typed

TYPED = typed(
    Path(__file__).parent,
    (
        "bridge.cache",
        "bridge.client",
        "bridge.connecting",
        "bridge.delivery",
        "bridge.delivery_tools",
        "bridge.exact",
        "bridge.inbound",
        "bridge.judged_topics",
        "bridge.link",
        "bridge.notify",
        "bridge.pacing",
        "bridge.permissions",
        "bridge.place",
        "bridge.publish",
        "bridge.pump",
        "bridge.runs",
        "bridge.source",
        "front.connection",
        "front.loop_state",
        "mqtt.answers",
        "mqtt.deliveries",
        "mqtt.incoming",
        "mqtt.outgoing",
        "mqtt.publish",
        "mqtt.session",
        "mqtt.session_state",
    ),
    upon=(remoting.TYPED,),
)
