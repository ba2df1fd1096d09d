"""Bodies that are JSON, Avro, Protobuf or Sparkplug B as typed columns."""
