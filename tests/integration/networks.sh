#!/usr/bin/env bash
# networks.py, with Python alone.
exec python3 "$(dirname "$0")/networks.py" "$@"
