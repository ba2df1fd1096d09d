"""Says which modules of this package are typed: compiled with the `.pxd` beside them where that is possible."""

from pathlib import Path

from remoting.native.typed import typed

TYPED = typed(
    Path(__file__).parent,
    (
        "inprocess",
        "protocol.bodies.append_body",
        "protocol.bodies.follow_body",
        "protocol.frames.commands",
        "server.authorizer",
        "server.router",
        "transport.calls",
        "transport.turn",
    ),
)
