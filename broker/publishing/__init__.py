"""Publishing: placement and the append of one loop turn."""
