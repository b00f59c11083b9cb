# audit.py: a thousand flips in one training, ten thousand calm steps.
exec python3 "$(dirname "$0")/audit.py" --slow
