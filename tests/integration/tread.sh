#!/usr/bin/env bash
# tread.py, with Python alone.
exec python3 "$(dirname "$0")/tread.py" "$@"
