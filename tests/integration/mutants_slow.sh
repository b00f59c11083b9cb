# Twenty of the mutants that a quick test is known to see are built and held against that test again.
exec "$(dirname "$0")/../mutants.sh" --known 20 --build "$DITTO_BUILD_DIR"
