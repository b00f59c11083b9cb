#!/usr/bin/env bash
# groups.py, with Python alone.
exec python3 "$(dirname "$0")/groups.py" "$@"
