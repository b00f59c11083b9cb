# What needs a machine that does nothing else: overlap of transfers with work, and bytes while training.
DITTO_QUIET_MACHINE=1 exec "$DITTO_BUILD_DIR/tests/ditto_unit_tests" --test-case="quiet:*"
