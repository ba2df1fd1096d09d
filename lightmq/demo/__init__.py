"""The main job on real input: sensors over MQTT, Spark over the log, commands back to the device, and an accounting."""
