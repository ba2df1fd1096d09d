"""The state of one MQTT connection: bytes in, events out, answers in, bytes out."""
