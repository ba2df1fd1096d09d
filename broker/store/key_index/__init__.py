"""The key index: topic and key -> log positions. See README.md."""
