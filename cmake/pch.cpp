// The one file of ditto_pch, whose precompiled header every target that sees LibTorch shares.
