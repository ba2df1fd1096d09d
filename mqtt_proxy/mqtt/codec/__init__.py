"""Packets and bytes of MQTT 3.1.1 and MQTT 5: pure functions without a session's state."""
