"""Says which modules of this package are typed: compiled with the `.pxd` beside them where that is possible."""

from pathlib import Path

import remoting
from remoting.native.typed import typed

TYPED = typed(
    Path(__file__).parent,
    (
        "publishing.append",
        "publishing.placement",
        "router",
        "subscriptions.follow",
        "store.log.confirm",
        "store.confirm_positions",
        "store.log_store",
        "store.placed",
        "store.queues",
        "store.index.tail",
        "store.append.writer",
    ),
    upon=(remoting.TYPED,),
)
