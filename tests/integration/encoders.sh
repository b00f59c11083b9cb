#!/usr/bin/env bash
# encoders.py, with Python alone.
exec python3 "$(dirname "$0")/encoders.py" "$@"
