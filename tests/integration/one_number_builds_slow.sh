# Other builds of the program have the same number; not run where they were not made.
exec python3 "$(dirname "$0")/one_number_builds_slow.py" "$@"
