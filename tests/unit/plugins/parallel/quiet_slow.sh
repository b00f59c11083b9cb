# What needs a machine that does nothing else: overlap of transfers with work, and bytes while training.
#
# Claim (machine): zero1, zero2 and fsdp hold the bytes that ZeRO's formulas say, within 0.1 %; fifteen transfers that come 5
# ms late lengthen a step of fsdp by less than a third of these 75 ms, and by more than that without prefetch (measured: at
# most 13, and more than 40). Also: `layout_derivations.md`
DITTO_QUIET_MACHINE=1 exec "$DITTO_BUILD_DIR/tests/ditto_unit_tests" --test-case="quiet:*"
