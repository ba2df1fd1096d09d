"""Says which modules of this package are typed: compiled with the `.pxd` beside them where that is possible."""

from pathlib import Path

import remoting
from remoting.hot.typed import typed

TYPED = typed(
    Path(__file__).parent,
    (
        "api.append",
        "api.direct",
        "api.follow",
        "store.confirm",
        "store.flusher",
        "store.log_store",
        "store.queue_index.tail",
        "store.writer",
    ),
    upon=(remoting.TYPED,),
)
