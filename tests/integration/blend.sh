#!/usr/bin/env bash
# Several sources as one.
exec python3 "${DITTO_SOURCE_DIR:-.}/tests/integration/blend.py" "$@"
