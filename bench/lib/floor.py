"""The least that a training step of DiT in bf16 takes on a GPU, from what its products and its memory were measured to do.

Products and attention are bound by arithmetic, rows and updates by memory; each part is taken as if nothing else had to wait for it:
- linear: 24 d^2 a token and block forward (qkv 3 d^2 weights, projection d^2, both of the MLP 8 d^2), the modulation 12 d^2 a sample and
  block; a backward as two forwards;
- attention: 4 T d a token and block forward at 500 TFLOP/s, 2.5 times as much backward at 350, as flash attention reaches them;
- rows: tensors [batch, tokens, d] of 2 bytes that are read or written beside the products: PASSES of them a block;
- update: 38 bytes a parameter (AdamW with the average, clipping and the bf16 copy in one pass); norm: 4.
"""

# By block: (what, forward, backward). GELU's are 4 d wide, and its derivative is taken where the product makes the gradient.
PASSES = [("norm and modulation, twice: x read, result written; backward gradient, x and the way around read, dx written", 4, 8),
          ("gated sum, twice: x and y read, sum written; backward gradient and y read, dy written", 6, 6),
          ("GELU: argument read, result written; backward argument read, gradient written", 8, 8)]
ATTENTION_TFLOPS = (500, 350)
UPDATE_BYTES, NORM_BYTES = 38, 4


def floor_ms(*, depth, width, tokens, batch, parameters, tflops, terabytes):
    """{part: milliseconds}. tflops: of a large product in bf16; terabytes: read and written a second by a copy."""
    rows = batch * tokens
    linear = 3 * depth * (24 * width**2 * rows + 12 * width**2 * batch)
    forward = 4 * tokens * width * rows * depth
    passes = sum(there + back for _, there, back in PASSES)
    return {"linear": linear / tflops / 1e9,
            "attention": (forward / ATTENTION_TFLOPS[0] + 2.5 * forward / ATTENTION_TFLOPS[1]) / 1e9,
            "rows": passes * depth * rows * width * 2 / terabytes / 1e9,
            "update": parameters * UPDATE_BYTES / terabytes / 1e9,
            "norm": parameters * NORM_BYTES / terabytes / 1e9}
