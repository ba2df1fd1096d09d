"""Consumer groups: members, offsets, locks and requests."""
