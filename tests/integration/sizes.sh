#!/usr/bin/env bash
# sizes.py, with Python alone.
exec python3 "$(dirname "$0")/sizes.py" "$@"
