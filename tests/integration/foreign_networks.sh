#!/usr/bin/env bash
# foreign_networks.py, with Python alone.
exec python3 "$(dirname "$0")/foreign_networks.py" "$@"
