"""Sockets: listeners, handshakes before MQTT, and connections that drive one session each."""
