"""Models, a layer and an op of others (tests/third_party): built outside of the tree against an installed prefix, they
train on every layout as on one rank, in fp64: losses, all gradients of the first step and all weights after ten. What a
layout cannot do is refused by name, and mistakes that are planted are seen.

Claim (plugins): A joint-attention transformer, a UNet, and a transformer with a layer and an op of its own, each one file built
outside of the tree, train as on one rank (losses, gradients, weights to 1e-12 in fp64) on the layouts that can serve them, and
the others are refused by name.
"""

import functools
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

near = 1e-12
seen = 1e-3  # a mistake is at least so far off

TOYS = {
    "mm_dit": dict(depth=3, width=32, heads=4, text_tokens=8),
    "unet": dict(channels=8, groups=4, heads=2),
    "primer": dict(depth=3, width=32, heads=4, kv_heads=2, qk_norm=True),
}
_transformers = {
    "fsdp 2": dict(shard=2, shard_plugin="fsdp"),
    "hsdp 2x2": dict(replicate=2, shard=2, shard_plugin="fsdp"),
    "tensor 2": dict(tensor=2),
    "tensor 2, sequence": dict(tensor=2, sequence=True),
    "ring 2": dict(context=2, context_plugin="ring"),
    "ring 4": dict(context=4, context_plugin="ring"),
    "ulysses 2": dict(context=2, context_plugin="ulysses"),
    "fastseq 2": dict(context=2, context_plugin="fastseq"),
    "pipeline 2": dict(pipeline=2),
    "recompute": dict(recompute="blocks"),
    "recompute attention": dict(recompute="attention"),
    "tensor 2 x ring 2": dict(tensor=2, context=2, context_plugin="ring"),
}
LAYOUTS = {
    "mm_dit": _transformers,
    "primer": _transformers,
    "unet": {
        "ddp 2": dict(replicate=2),
        "zero2 2": dict(shard=2, shard_plugin="zero2"),
        "fsdp 2": dict(shard=2, shard_plugin="fsdp"),
        "tensor 2": dict(tensor=2),
        "pipeline 2": dict(pipeline=2),
        "recompute": dict(recompute="blocks"),
        "tensor 2 x fsdp 2": dict(tensor=2, shard=2, shard_plugin="fsdp"),
    },
}
QUICK = {"mm_dit": ["ring 2"], "unet": ["tensor 2"], "primer": ["tensor 2, sequence"]}


# --- the plugins -------------------------------------------------------------------------------------------------------


def said_by(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=t.patient(500),
                          env=t.compiled_once())
    t.check(done.returncode == 0, f"{words[0]} {words[1]}:", (done.stdout + done.stderr)[-4000:])
    return done.stdout + done.stderr


@functools.cache
def plugins():
    """Where they are, built by nothing but what is installed; from then on the installed program runs."""
    prefix, own, built = t.work / "prefix", t.work / "third_party", t.work / "built"
    said_by("cmake", "--install", t.build, "--prefix", prefix)
    shutil.copytree(t.source / "tests/third_party", own, dirs_exist_ok=True)
    said_by("cmake", "-S", own, "-B", built, f"-DCMAKE_PREFIX_PATH={prefix}")
    said = said_by("cmake", "--build", built, "-j2")
    t.check("warning" not in said, "they build with warnings:", said[-4000:])
    t.ditto = str(prefix / "bin/ditto")
    shutil.copy(t.build / "tests/fixture_plugins/faulty_ring.so", built / "lib/ditto/plugins")
    return built / "lib/ditto/plugins"


def recipe(toy, name=None, **model):
    """It starts from weights none of which is zero any more: blocks that do nothing are equal on any layout."""
    name = name or toy
    text = dict(text_tokens=6, text_width=12) if toy == "mm_dit" else {}
    tree = t.recipe(run=dict(name=name, steps=4, batch=8, micro_batch=2 if t.slow else 4, precision="fp64"),
                    data=t.synthetic(classes=4, **text), model=dict(plugin=toy, **TOYS[toy]) | model,
                    lr_schedule=dict(lr=1e-2, warmup=0), plugins=dict(kernels=["cpu", "relu2_gate"]))
    train(t.write_recipe(name + "-start.toml", tree), name + "-start")
    tree["run"] |= dict(steps=10, init_from=str(t.work / (name + "-start")), init_weights="weights")
    tree["optimizer"], tree["lr_schedule"]["lr"] = dict(plugin="sgd", momentum=0.9), 0.05
    tree["checkpoint"] = dict(every=1, keep=10)
    return t.write_recipe(name + ".toml", tree)


def ranks(layout):
    count = 1
    for axis in ("tensor", "context", "pipeline", "shard", "replicate"):
        count *= layout.get(axis, 1)
    return count


def words(layout):
    local = ("--local-ranks", ranks(layout)) if ranks(layout) > 1 else ()
    return ("--plugin-path", plugins(), *local, *t.sets({f"parallel.{key}": value for key, value in layout.items()}))


def train(path, folder, layout={}, **options):
    return t.train(path, folder, *words(layout), **options)


# --- comparing ---------------------------------------------------------------------------------------------------------


class Learned:
    """Losses and norms of every step; after the first step and after the last all tensors. After the first step sgd's
    momentum is the gradient."""

    def __init__(self, folder):
        self.lines = t.metrics(folder)
        names = t.checkpoints(folder)
        self.first, self.last = (t.tensors_of(t.work / folder / "checkpoints" / name) for name in (names[0], names[-1]))


def learned(path, layout={}, folder=None, **options):
    folder = folder or "-".join([path.stem, *(f"{key}{value}" for key, value in layout.items())])
    train(path, folder, layout, **options)
    return Learned(folder)


def distance(a, b):
    """Over the largest number of the tensor."""
    a, b = t.numbers(a), t.numbers(b)
    t.equal(len(b), len(a), "numbers of a tensor")
    return max(map(abs, map(float.__sub__, a, b)), default=0) / max(max(map(abs, a), default=0), 1e-9)


def distances(one, other):
    """{what: how far off}, of steps' losses and norms, and of tensors after the first step and after the last."""
    off = {}
    t.equal(len(other.lines), len(one.lines), "steps")
    for mine, theirs in zip(one.lines, other.lines):
        for what in ("loss", "grad_norm"):
            a, b = float(mine[what]), float(theirs[what])
            off[f"{what} of step {mine['step']}"] = abs(a - b) / abs(a)
    for when in ("first", "last"):
        a, b = getattr(one, when), getattr(other, when)
        t.equal(sorted(b), sorted(a), f"tensors after the {when} step")
        for (section, name), tensor in a.items():
            off[f"{section} {name} after the {when} step"] = distance(tensor, b[section, name])
    return off


def worst(off):
    return max(off.items(), key=lambda item: item[1])


def check_same(one, other, what):
    where, far = worst(distances(one, other))
    t.check(far <= near, f"{what}: {where} is {far:.1e} off")
    print(f"{what}: at most {far:.1e} off ({where})", flush=True)


def check_seen(off, what, *parts):
    """The mistake is far off, in something of each of these names."""
    for part in parts:
        where, far = worst({name: far for name, far in off.items() if part in name})
        t.check(far > seen, f"{what}: {part} is at most {far:.1e} off ({where}), and the comparison would pass it")
        print(f"{what}: {where} is {far:.1e} off", flush=True)


@functools.cache
def alone(toy):
    path = recipe(toy)
    one = learned(path)
    for (section, name), tensor in one.first.items():
        if section == "optimizer":
            t.check(any(t.numbers(tensor)), f"{toy}: the first gradient of {name} is zero: nothing is compared")
    line = t.lines_of(t.work / toy / "metrics.jsonl")[0]
    t.check(float(line["tflops"] or 0) > 0, f"{toy}: its operations are not counted:", line)
    return path, one


def check_layouts(toy):
    path, one = alone(toy)
    for name, layout in LAYOUTS[toy].items():
        if t.slow or name in QUICK[toy]:
            check_same(one, learned(path, layout), f"{toy}, {name}")


def refused(path, layout, *parts, code=2, **options):
    given = {key.replace("__", "."): value for key, value in options.items()}
    t.refused(code, parts, "train", path, *words(layout), *t.sets({"run.output": str(t.work / "refused")} | given))


# --- tests -------------------------------------------------------------------------------------------------------------


def test_text_and_picture_that_attend_jointly_train_as_on_one_rank():
    check_layouts("mm_dit")


def test_a_unet_trains_as_on_one_rank():
    check_layouts("unet")


def test_a_layer_and_an_op_of_others_train_as_on_one_rank():
    check_layouts("primer")


def test_the_op_is_computed_by_its_kernel_and_as_its_reference():
    path, one = alone("primer")
    log = (t.work / "primer/log.txt").read_text()
    t.check("kernel relu2_gate" in log and "one_pass" in log, "no kernel was chosen:", log)
    check_same(one, learned(path, folder="primer-reference", kernels__relu2_gate="reference"), "the op's reference")
    refused(path, {}, 'op "relu2_gate"', "plugins.kernels", plugins__kernels=["cpu"])


def test_what_a_layout_cannot_do_is_refused_by_name():
    path, _ = alone("unet")
    said = "this model does not say that its blocks mix them through attention alone"
    refused(path, dict(tensor=2, sequence=True), "parallel.sequence", said)
    refused(path, LAYOUTS["primer"]["ring 2"], 'blocks.0.residual.norm1" makes each place of a map from others',
            model__claims_local=True)
    primer, _ = alone("primer")
    refused(primer, LAYOUTS["primer"]["ring 2"], "blocks.0.neighbours", model__neighbours="said",
            run__init_missing="new")
    if not t.slow:
        return
    for plugin in ("ring", "ulysses", "fastseq", "spatiotemporal"):
        refused(path, dict(context=2, context_plugin=plugin), "parallel.context", said)
        refused(primer, dict(context=2, context_plugin=plugin), "blocks.0.neighbours", model__neighbours="said",
                run__init_missing="new")
    refused(path, dict(tensor=4), "4 does not divide the 2 attention heads")
    refused(path, dict(pipeline=6), "6", "5 blocks")
    refused(path, {}, "batch.plan", "this model's are maps, which have none", data__sizes=["8x8", "8x12"], batch__plan="packs", batch__tokens=200)


def test_a_texts_gradient_that_is_counted_once_a_rank_is_seen():
    path, one = alone("mm_dit")
    off = distances(one, learned(path, dict(context=2, context_plugin="faulty_ring")))
    check_seen(off, "a text's gradient counted twice", "momentum/text.weight after the first", "grad_norm of step 1",
               "model text.weight after the last")
    where, far = worst({name: far for name, far in off.items() if "loss of step 1" == name or
                        ("after the first step" in name and "text." not in name)})
    t.check(far <= near, f"all else is right: {where} is {far:.1e} off")


def test_a_norm_over_a_ranks_channels_alone_is_seen():
    t.only_slow()
    path = recipe("unet", "norm", own_norm=True)
    off = distances(learned(path), learned(path, dict(tensor=2)))
    check_seen(off, "a norm over a rank's channels", "loss", "grad_norm", "optimizer momentum", "model")


def test_a_halo_that_is_forgotten_is_seen():
    t.only_slow()
    path = recipe("primer", "halo", neighbours="unsaid")
    one = learned(path)
    check_same(one, learned(path, dict(tensor=2)), "neighbours that are whole on every rank")
    off = distances(one, learned(path, dict(context=2, context_plugin="ring")))
    check_seen(off, "a forgotten halo", "loss", "grad_norm", "optimizer momentum", "model")


def test_text_and_pictures_of_several_sizes_in_packs_learn_what_every_sample_by_itself_does():
    t.only_slow()
    path, _ = alone("mm_dit")
    sizes = dict(model__text_tokens=0, data__sizes=["8x8", "4x8", "12x8", "8x4", "12x12"], run__batch=12)
    packs = sizes | dict(run__micro_batch=12, batch__plan="packs", batch__tokens=60)
    one = learned(path, folder="each", **sizes, run__micro_batch=1)
    for name, layout in {"one rank": {}, "two": dict(replicate=2), "ring 2": _transformers["ring 2"],
                         "pipeline 2": _transformers["pipeline 2"], "fsdp 2": _transformers["fsdp 2"],
                         "tensor 2, sequence": _transformers["tensor 2, sequence"]}.items():
        check_same(one, learned(path, layout, folder=f"packs-{name}", **packs), f"packs, {name}")


def test_maps_of_several_sizes_in_buckets_learn_what_every_sample_by_itself_does():
    t.only_slow()
    path, _ = alone("unet")
    sizes = dict(data__sizes=["8x8", "4x8", "12x8"], run__batch=12)
    one = learned(path, folder="each-map", **sizes, run__micro_batch=1)
    for name, layout in {"one rank": {}, "tensor 2": dict(tensor=2), "pipeline 2": dict(pipeline=2)}.items():
        check_same(one, learned(path, layout, folder=f"buckets-{name}", **sizes, run__micro_batch=4,
                                batch__plan="buckets"), f"buckets, {name}")


if __name__ == "__main__":
    t.main(globals())
