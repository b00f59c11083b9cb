# receipts.py: 100 runs that were tampered with.
exec python3 "$(dirname "$0")/receipts.py" --slow tampered
