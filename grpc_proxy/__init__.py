"""Lists the modules of this package that are typed: compiled with the `.pxd` beside them where that is possible."""

from pathlib import Path

from remoting.native.typed import typed

TYPED = typed(
    Path(__file__).parent,
    ("http2.connection", "http2.hpack", "http2.huffman", "http2.outgoing", "http2.requests"),
)
