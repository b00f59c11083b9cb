"""run.numerics = "one": one hash of weights, averages, states, losses and norms, whatever the layout, threads, micro-batch and
kernels; and what has no such bits yet is refused by name.

Claim (one number): With `run.numerics = "one"` (fp32) a training has one hash of all weights, averages, states, losses and
norms over ranks (ddp, ZeRO, FSDP, HSDP, tensor with and without sequence regions, ring, ulysses, fastseq, expert, pipeline),
recomputation, offload, threads, micro-batch sizes and AVX-512, AVX2 or plain kernels, also through a resume that changes them
all; samples do not depend on their batch; `dit_moe`, adapters, `sgd`, `lion`, `adamw8bit` and `muon` too, and samples of
several sizes, asked for in packs, in buckets or as they come (they are computed one by one); what cannot have it yet (GPUs) is
refused by name; every layout of the matrix has it or says why not. Also: `one_number_models.py`, `matrix.sh`,
`exact_kernels_test.cpp`, every layout in `parallelism_matrix.md`; a hundred steps at width 192 on 52 layouts:
`one_number_slow.py hundred`
"""

import hashlib
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

STEPS = 10
# Ops that the recipe below runs, by what computes them.
OPS = ("linear", "linear_gelu_tanh", "silu", "norm_modulate", "gated_residual", "attention", "embedding_rows", "add_row",
       "sample_mean", "adamw")


def recipe(name="one.toml", numerics="one", **sections):
    run = dict(name="one", steps=STEPS, batch=16, micro_batch=4, threads=1, numerics=numerics, clip_norm=0.5)
    if numerics == "one":
        run["token_leaf"] = 8  # of 64 tokens
    model = dict(depth=4, width=48, heads=12, patch=1)
    given = dict(run=run | sections.pop("run", {}), model=model | sections.pop("model", {}))
    return t.write_recipe(name, t.recipe(**given, **sections))


def hash_of(folder):
    """Of all tensors of the last checkpoint and of every step's line."""
    text = hashlib.sha256()
    for key, (dtype, shape, data) in sorted(t.tensors_of(t.latest(folder)).items()):
        text.update(json.dumps([key, dtype, shape]).encode())
        text.update(data)
    text.update(json.dumps(t.metrics(folder)).encode())
    return text.hexdigest()


def train(path, folder, ranks=1, *words, **options):
    return t.train(path, folder, *(["--local-ranks", ranks] if ranks > 1 else []), *words, **options)


def pinned(variant):
    return {f"kernels__{op}": variant for op in OPS}


NEEDS = {"exact_avx512": {"avx512f", "avx512dq", "avx512vl", "avx512bw"}, "exact_avx2": {"avx2", "fma"}}


def has(variant):
    """Whether this processor has what a kernel set needs; what is not in NEEDS needs nothing."""
    flags = next((line.split() for line in open("/proc/cpuinfo") if line.startswith(("flags", "Features"))), [])
    return NEEDS.get(variant, set()) <= set(flags)


LAYOUTS = {
    "threads 2": (1, dict(run__threads=2)),
    "micro-batch 1": (1, dict(run__micro_batch=1)),
    "micro-batch 5": (1, dict(run__micro_batch=5)),
    "micro-batch 16, threads 2": (1, dict(run__micro_batch=16, run__threads=2)),
    "micro-batch 0": (1, dict(run__micro_batch=0)),
    "replicate 2": (2, {}),
    "replicate 2, a micro-batch each": (2, dict(run__micro_batch=0)),
    "replicate 3, no whole accumulation": (3, dict(run__micro_batch=2)),
    "zero1": (2, dict(parallel__shard=2, parallel__shard_plugin="zero1")),
    "zero2": (2, dict(parallel__shard=2, parallel__shard_plugin="zero2", run__micro_batch=1)),
    "fsdp": (2, dict(parallel__shard=2, parallel__shard_plugin="fsdp", run__micro_batch=0)),
    "hsdp": (4, dict(parallel__shard=2, parallel__replicate=2, parallel__shard_plugin="fsdp", run__micro_batch=2)),
    "pipeline": (2, dict(parallel__pipeline=2)),
    "pipeline, interleaved": (2, dict(parallel__pipeline=2, parallel__virtual_stages=2, run__micro_batch=2)),
    "pipeline and replicas": (4, dict(parallel__pipeline=2, parallel__replicate=2, parallel__virtual_stages=2,
                                      run__micro_batch=2)),
    "recompute": (1, dict(parallel__recompute="blocks", run__micro_batch=8)),
    "recompute attention, offload": (1, dict(parallel__recompute="attention", parallel__offload="optimizer")),
    "offload, fsdp, recompute": (2, dict(parallel__shard=2, parallel__shard_plugin="fsdp", parallel__offload="optimizer",
                                         parallel__recompute="blocks")),
    "tensor 2, two nodes a rank": (2, dict(parallel__tensor=2)),
    "tensor 3, one node a rank": (3, dict(parallel__tensor=3, run__micro_batch=16)),
    "tensor 4": (4, dict(parallel__tensor=4, run__micro_batch=5)),
    "tensor 2, fsdp": (4, dict(parallel__tensor=2, parallel__shard=2, parallel__shard_plugin="fsdp")),
    "tensor 2, pipeline": (4, dict(parallel__tensor=2, parallel__pipeline=2)),
}
# What takes long makes fewer steps: plain kernels, and ranks that share a sample's tokens, which run one sample at a time. More
# are in one_number_slow.py.
FEW = 2
PLAIN = {
    "plain kernels": (1, pinned("exact_plain")),
    "tensor 2, plain kernels, recompute": (2, dict(parallel__tensor=2, parallel__recompute="blocks", **pinned("exact_plain"))),
}
TOKENS = {
    "fastseq 2, tensor 2, sequence": (4, dict(parallel__context=2, parallel__context_plugin="fastseq", parallel__tensor=2,
                                              parallel__sequence=True)),
    "fastseq 2, tensor 2": (4, dict(parallel__context=2, parallel__context_plugin="fastseq", parallel__tensor=2)),
    "tensor 2, sequence, ring 2": (4, dict(parallel__tensor=2, parallel__sequence=True, parallel__context=2,
                                           parallel__context_plugin="ring")),
    "tensor 3, sequence, uneven": (3, dict(parallel__tensor=3, parallel__sequence=True)),
    "ring 3, uneven": (3, dict(parallel__context=3, parallel__context_plugin="ring", parallel__recompute="blocks")),
    "ulysses 2": (2, dict(parallel__context=2, parallel__context_plugin="ulysses")),
    "fastseq 3": (3, dict(parallel__context=3, parallel__context_plugin="fastseq")),
}


def test_one_hash_on_every_layout():
    path = recipe()
    train(path, "one")
    expected = hash_of("one")
    print(f"one number: {expected}", flush=True)
    layouts = dict(LAYOUTS)
    if has("exact_avx2"):
        layouts["AVX2 kernels"] = (1, pinned("exact_avx2"))
    for name, (ranks, options) in layouts.items():
        done = train(path, name, ranks, **options)
        t.equal(hash_of(name), expected, f"hash of {name}")
        if options.get("run__micro_batch") == 5:
            t.check("micro-batches of 4 samples where 5 were asked for" in done.all, done.all)
        else:
            t.check("were asked for" not in done.all, done.all)

    # Half on one layout, half on another, with other micro-batches, threads and kernels.
    train(path, "halves", 2, run__steps=STEPS // 2, parallel__pipeline=2, run__micro_batch=2)
    done = train(path, "halves", 2, parallel__shard=2, parallel__shard_plugin="fsdp", run__threads=2, run__micro_batch=8,
                 **pinned("exact_avx2" if has("exact_avx2") else "exact_plain"))
    t.check("changed since: run.threads: 1 -> 2 (bit for bit)" in done.all, done.all)
    t.check("not bit for bit" not in done.all, done.all)
    t.equal(hash_of("halves"), expected, "hash of a run that went on elsewhere")


def test_plain_kernels_have_the_same_hash():
    path = recipe()
    train(path, "two-steps", run__steps=FEW)
    for name, (ranks, options) in PLAIN.items():
        done = train(path, name, ranks, run__steps=FEW, **options)
        t.equal(hash_of(name), hash_of("two-steps"), f"hash of {name}")
        t.check("were asked for" not in done.all, done.all)


def test_one_hash_where_ranks_share_a_samples_tokens():
    # Leaves that no number of ranks divides, of which the last is short; few samples, which are run one by one.
    path = recipe(run=dict(token_leaf=10, batch=6))
    train(path, "few", run__steps=FEW)
    for name, (ranks, options) in TOKENS.items():
        done = train(path, name, ranks, run__steps=FEW, **options)
        t.equal(hash_of(name), hash_of("few"), f"hash of {name}")
        t.check("micro-batches of 1 sample where 4 were asked for" in done.all, done.all)


def test_a_batch_that_is_no_power_of_two():
    path = recipe("odd.toml", run=dict(batch=11, steps=3))
    hashes = {}
    for micro_batch, ranks in ((0, 1), (1, 1), (4, 1), (2, 3), (0, 2)):
        train(path, f"odd{micro_batch}-{ranks}", ranks, run__micro_batch=micro_batch)
        hashes[micro_batch, ranks] = hash_of(f"odd{micro_batch}-{ranks}")
    t.equal(len(set(hashes.values())), 1, f"different hashes of {hashes}")


def test_fast_kernels_have_other_bits_by_micro_batch():
    path = recipe("fast.toml", numerics="fast")
    for micro_batch in (1, 16):
        train(path, f"fast{micro_batch}", run__micro_batch=micro_batch)
    t.check(hash_of("fast1") != hash_of("fast16"), "the hash shows nothing: fast has one, too")
    t.check(hash_of("fast16") != hash_of("one"), "one number has the fast kernels' bits")


def test_the_recipe_is_written_down():
    text = (t.work / "one" / "run.toml").read_text()
    t.check('numerics = "one"' in text, text)
    for op in OPS:
        if op == "add_row":  # of models that learn positions: pinned here, and not run
            continue
        t.check(any(f'"{op} fp32' in line and "exact_" in line for line in text.splitlines()), f"no exact {op} in", text)


def test_samples_do_not_depend_on_their_batch():
    for batch in (1, 3):
        t.run("sample", t.work / "one", "--out", t.work / f"samples{batch}", "--batch", batch, "--seeds", "0-4", "--classes",
              "0-4", "--steps", 3, "--save-latents", t.work / f"latents{batch}")
    latents = [t.read_tensors(t.work / f"latents{batch}")["latents"] for batch in (1, 3)]
    t.equal(latents[0][1][0], 5, "samples")
    t.check(latents[0] == latents[1], "samples differ by their batch")


def test_bytes_equal_the_closed_form():
    """docs/layout_rules.md, One number's rules: of what rank 0 sends in a step of 16 samples."""
    path = recipe("bytes.toml", run=dict(steps=1))
    samples, tokens, depth, width = 16, 64, 4, 48
    x, rows = samples * tokens * width, samples * width

    def sent(folder, axis, ranks, **options):
        train(path, folder, ranks, "--trace", "comm", **options)
        line = json.loads((t.work / folder / "metrics.jsonl").read_text().splitlines()[0])
        return {(op, when): counts["bytes"] // 4 for op, passes in line["comm"][axis].items() for when, counts in passes.items()}

    for ranks, nodes in ((2, 2), (3, 1), (4, 2)):  # of 12 heads, or runs; rank 0's
        share = (ranks - 1) / ranks
        sums = {"forward": depth * 2 * x, "backward": depth * (2 * x + rows) + rows}  # rows: a modulation's input
        gathered = {"forward": depth * 6 * rows + 2 * rows, "backward": 0}
        found = sent(f"tensor{ranks}", "tensor", ranks, parallel__tensor=ranks)
        for when in ("forward", "backward"):
            t.equal(found["nodes", when], share * nodes * sums[when], f"nodes sent on {ranks} tensor ranks, {when}")
            t.equal(found["all_gather", when], share * (sums[when] + gathered[when]), f"gathered on {ranks} tensor ranks, {when}")

    # Two slices of four leaves: one node each, of each weight of a block and each sample's six rows of modulation.
    weights = samples * depth * (12 * width**2 + 9 * width + 6 * width)
    found = sent("ring", "context", 2, parallel__context=2, parallel__context_plugin="ring")
    t.equal(found["nodes", "backward"], (weights + depth * 2 * x) / 2, "nodes sent on a ring")
    t.equal(found["all_gather", "backward"], (weights + x) / 2, "gathered on a ring, backward")
    t.equal(found["all_gather", "forward"], (depth * 2 * x + x) / 2, "gathered on a ring, forward")


def test_what_has_no_such_bits_is_refused_by_name():
    path = recipe("refused.toml")
    cases = [
        ({"parallel.expert": 3}, "parallel.expert = 3"),
        ({"run.precision": "fp16"}, 'run.precision = "fp16"'),
        ({"run.deterministic": False}, "run.deterministic = false"),
    ]
    for options, what in cases:
        t.refused(2, ["run.numerics", what], "config", "check", path, *t.sets(options))
    t.refused(2, ["run.numerics", "parallel.expert = 3"], "train", path, *t.sets({"parallel.expert": 3}))
    t.refused(2, ["run.numerics", "parallel.expert = 3"], "train", path, "--dry-run", "--ranks", 3,
              *t.sets({"parallel.expert": 3}))
    t.refused(2, ["parallel.tensor: 8 does not divide the 12"], "train", path, "--local-ranks", 8,
              *t.sets({"parallel.tensor": 8}))
    t.refused(2, ["parallel.context: 9 is more than the 8 leaves"], "train", path, "--local-ranks", 9,
              *t.sets({"parallel.context": 9, "parallel.context_plugin": "ring"}))
    t.refused(2, ["parallel.context: 5 does not divide the 12"], "train", path, "--local-ranks", 5,
              *t.sets({"parallel.context": 5, "parallel.context_plugin": "fastseq"}))
    for command in (["train"], ["train", "--dry-run"]):
        t.refused(2, ["run.numerics", 'optimizer "adafactor"'], command[0], path, *command[1:],
                  *t.sets({"optimizer.plugin": "adafactor"}))


def test_a_dry_run_counts_sums_that_wait():
    path = recipe("dry.toml")

    def bytes_of(**options):
        given = {key.replace("__", "."): value for key, value in options.items()}
        done = t.run("train", path, "--dry-run", "--json", "--ranks", given.pop("ranks", 1), *t.sets(given))
        return json.loads(done.stdout)["first"]["bytes"]

    whole = bytes_of(run__micro_batch=16)
    t.equal(whole["nodes"], 0, "bytes that wait with one micro-batch")
    t.equal(bytes_of(run__micro_batch=4)["nodes"], 2 * whole["gradients"], "bytes that wait with 4 micro-batches")
    t.equal(bytes_of(run__micro_batch=1)["nodes"], 4 * whole["gradients"], "bytes that wait with 16 micro-batches")
    t.check("nodes" not in bytes_of(run__numerics="fast", run__token_leaf=32), "the fast kernels count sums that wait")


if __name__ == "__main__":
    t.main(globals())
