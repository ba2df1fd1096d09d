"""What operators ask the connected MQTT proxies for."""
