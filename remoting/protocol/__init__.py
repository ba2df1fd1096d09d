"""The wire protocol: frames, headers, bodies, records and names; pure (no clock, socket, loop, file, randomness)."""
