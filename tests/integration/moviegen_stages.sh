# Movie Gen's stages, one after the other.
exec python3 "$(dirname "$0")/moviegen_stages.py" "$@"
