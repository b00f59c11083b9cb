#!/usr/bin/env bash
# Shards on an HTTP server that fails, stalls and closes.
exec python3 "${DITTO_SOURCE_DIR:-.}/tests/integration/store.py" "$@"
