"""Files of credentials: access keys, certificates of a private authority, users of MQTT."""
