"""Files that decide who gets in: access keys, certificates of a private authority, users of MQTT."""
