# The table of models in docs/models.md is what the golden test prints.
exec python3 "$(dirname "$0")/../models_table.py"
