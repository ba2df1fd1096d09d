"""Looking at a data directory without owning it: check, list, count; and rebuilding its index. See README.md."""
