# Twenty small faults, drawn from those that tests are known to see, must be seen again.
exec tests/mutants.sh --known 20 --build "${DITTO_BUILD_DIR:?the build folder}"
