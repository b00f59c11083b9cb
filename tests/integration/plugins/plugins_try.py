"""`ditto plugins try`: models of the tree train alike on every layout, and encoders encode alike; a mistake is named, with the layer or
field that has it.

Claim (plugins): 25 mistakes that authors of models make are each named, with the layer or field that has it; 17 mistakes of
encoders likewise; five models of the tree and one outside of it train alike on 18 layouts, in a pack and by themselves. Also:
all of them in `plugins_try.py --slow`

Every mistake with --slow; else those whose sentences no other has.
"""

import concurrent.futures
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

models = t.build / "lib/ditto/plugins/models"
mistaken = t.build / "tests/fixture_plugins/mistaken_model.so"
LAYOUTS = ["by itself", "ddp 2", "zero1 2", "zero2 2", "fsdp 2", "recompute", "offload", "pipeline 2", "expert 2", "tensor 2", "tensor 4",
           "tensor 2, sequence", "ring 2", "ring 4", "ulysses 2", "fastseq 2", "spatiotemporal 2", "tensor 2 x ring 2", "pack",
           "pack, ring 2"]
TENSOR = {"tensor 2", "tensor 4", "tensor 2, sequence", "tensor 2 x ring 2"}
TOKENS = {"ring 2", "ring 4", "ulysses 2", "fastseq 2", "spatiotemporal 2", "tensor 2 x ring 2"}
SPLIT = "a missing or wrong Split: blocks.0."
HEADS = "expected Split::heads({4, 4, 4}, 8)"

# What is wrong: the layouts that must show it, and words of the sentence.
MISTAKES = {
    "qkv without Split": (TENSOR, SPLIT + "qkv has no Split, and blocks.0.proj, which it feeds, has Split::rows()", HEADS),
    "proj without Split": (TENSOR, SPLIT + "proj has no Split, and is given a share of what blocks.0.qkv by attention makes",
                           "expected Split::rows()"),
    "up without Split": (TENSOR, SPLIT + "up has no Split, and blocks.0.narrow, which it feeds", "expected Split::columns({128})"),
    "down without Split": (TENSOR, SPLIT + "down has no Split, and is given a share of what blocks.0.gated makes"),
    "up by rows": (TENSOR, SPLIT + "up has Split::rows(), and its inputs are whole", "expected Split::columns({128})"),
    "gate in one part": (TENSOR, SPLIT + "gated has Split::columns({128})", "expected Split::columns({64, 64})"),
    "qkv by columns": (TENSOR, SPLIT + "qkv has Split::columns({96}), and feeds attention", HEADS),
    "qkv by columns in parts": ({"by itself"}, SPLIT + "qkv has Split::columns({32, 32, 32}), and feeds attention", HEADS),
    "qkv by rows": (TENSOR, SPLIT + "qkv has Split::rows(), and its inputs are whole", HEADS),
    "qkv as one run of heads": (TENSOR, SPLIT + "qkv has Split::heads({12}, 8)", HEADS),
    "qkv with other counts": (TENSOR, SPLIT + "qkv has Split::heads({4, 8}, 8)", HEADS),
    "qkv of narrow heads": ({"by itself"}, SPLIT + "qkv has Split::heads({8, 8, 8}, 4)", HEADS),
    "qkv head by head": (TENSOR, SPLIT + "qkv has Split::heads({4}, 24)", HEADS),
    "hard-coded heads": (TENSOR, "a hard-coded number of heads: where blocks.0.qkv leaves a rank 6 of 12 heads"),
    "hard-coded heads, silent": (TENSOR, "a hard-coded number of heads: where blocks.0.qkv leaves a rank 6 of 12 heads",
                                 "4 heads of width 4, where the whole has 4 of width 8"),
    "positions after the cut": (TOKENS, "positions added after the cut: block 0 makes \"x\""),
    "positions of the tokens here": (TOKENS, "positions added after the cut: block 0 makes \"x\""),
    "mean over tokens": (TOKENS, "tokens mixed outside of attention: block 0 makes \"x\""),
    "mean over a pack": ({"pack", "pack, ring 2"}, "samples of a pack that see one another: block 0 makes \"x\" of other samples' tokens"),
    "condition of another sample": ({"pack", "pack, ring 2"}, "a pack taken for one sample: block 0 makes \"x\" otherwise than of its samples"),
    "carried token count": (TOKENS, "a carried token count: block 0 cannot run on a part of the tokens"),
    "scaled by the tokens here": (TOKENS, "a carried token count: block 0 makes \"x\" by the number of tokens"),
    "noise by generator": (set(LAYOUTS) - {"expert 2"}, "noise by generator: unit block 0 calls aten::randn_like"),
    "parameter in the wrong unit": ({"fsdp 2", "pipeline 2"},
                                    "a parameter in the wrong unit: unit condition uses stray.bias, which is unit head's"),
    "constants in tokens": ({"pipeline 2"}, "constants made in tokens: tokens() sets the constant \"rotary\""),
}

ONLY_SLOW = {"proj without Split", "up without Split", "up by rows", "qkv as one run of heads", "qkv with other counts", "qkv head by head",
             "hard-coded heads", "positions after the cut", "scaled by the tokens here", "qkv by columns in parts"}


ENCODER_LAYOUTS = ["by itself", "fsdp 2", "zero2 2", "expert 2", "tensor 2", "tensor 4", "tensor 2, sequence", "tensor 2 x fsdp 2"]
ENCODER_TENSOR = {"tensor 2", "tensor 4", "tensor 2, sequence", "tensor 2 x fsdp 2"}
ENCODER_MISTAKES = {
    "qkv without Split": (ENCODER_TENSOR, SPLIT + "qkv has no Split", HEADS),
    "qkv by columns": (ENCODER_TENSOR, SPLIT + "qkv has Split::columns({96})", HEADS),
    "qkv by rows": (ENCODER_TENSOR, SPLIT + "qkv has Split::rows()"),
    "qkv as one run of heads": (ENCODER_TENSOR, SPLIT + "qkv has Split::heads({12}, 8)", HEADS),
    "qkv with other counts": (ENCODER_TENSOR, SPLIT + "qkv has Split::heads({4, 8}, 8)", HEADS),
    "proj without Split": (ENCODER_TENSOR, SPLIT + "proj has no Split", "expected Split::rows()"),
    "up without Split": (ENCODER_TENSOR,),
    "up by rows": (ENCODER_TENSOR, SPLIT + "gated has Split::rows()"),
    "gate in one part": (ENCODER_TENSOR, SPLIT + "gated has Split::columns({128})", "expected Split::columns({64, 64})"),
    "down without Split": (ENCODER_TENSOR, SPLIT + "down has no Split"),
    "hard-coded heads": (ENCODER_TENSOR,),
    "outside of its unit": ({"fsdp 2"},),
    "sees the padding": ({"by itself"}, "of sample 1 by itself \"text\" differs"),
    "attends to the padding": ({"by itself"}, "of sample 1 by itself \"text\" differs"),
    "shows the padding": ({"by itself"}, "\"text_mask\" shows 6 places of a text that has 3"),
    "sees its neighbours": ({"by itself"}, "by itself \"text\" differs"),
    "noise by generator": ({"by itself"},),
}
ENCODER_QUICK = {"qkv by columns", "sees the padding"}


def outcomes(done, layouts=LAYOUTS):
    """{layout: "ok", "refused" or "WRONG"} of what was printed."""
    found = {}
    for line in done.stdout.splitlines():
        words = line.split(maxsplit=1)
        if line.startswith("  ") and words[0] in ("ok", "refused", "WRONG"):
            found[words[1].split(":")[0]] = words[0]
    t.equal(list(found), layouts, "layouts tried")
    return found


def try_mistake(mistake):
    named(mistake, mistaken, "model", MISTAKES[mistake], LAYOUTS)


def named(mistake, path, section, expected, layouts):
    shows, *words = expected
    done = t.refused(3, [path.stem], "plugins", "try", path, "--set", f"{section}.mistake={mistake}")
    found = outcomes(done, layouts)
    wrong = {layout for layout in layouts if found[layout] == "WRONG"}
    t.check(shows <= wrong, f"{mistake}: not wrong: {sorted(shows - wrong)}\n{done.stdout}")
    sentences = [line for line in done.stdout.splitlines() if line.endswith(".") and not line.startswith(" ")]
    t.equal(len(sentences), len(wrong), f"{mistake}: sentences\n{done.stdout}")
    for part in words:
        t.check(part in done.stdout, f"{mistake}: no \"{part}\" in\n{done.stdout}")


def test_mistakes_are_named():
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for _ in pool.map(try_mistake, [name for name in MISTAKES if t.slow or name not in ONLY_SLOW]):
            pass


def tried_right(path, refused, *arguments):
    began = time.monotonic()
    done = t.run("plugins", "try", path, *arguments)
    t.check(time.monotonic() - began < 60, f"{path} took {time.monotonic() - began:.0f} s")
    found = outcomes(done)
    for layout, outcome in found.items():
        t.equal(outcome, "refused" if layout in refused else "ok", f"{path.name} on {layout}\n{done.stdout}")
    t.check("trains alike" in done.stdout, done.stdout)


def test_right_models_train_alike():
    without_experts = {"expert 2"}
    tried_right(models / "libdit_moe.so", set())
    for name in ("dit", "dit_text", "st_dit") if t.slow else ("st_dit",):
        tried_right(models / f"lib{name}.so", without_experts)
    tried_right(models / "libwan.so", without_experts | {"fastseq 2"})  # a norm over all heads
    tried_right(mistaken, without_experts)


def test_a_model_that_one_number_refuses_is_told_before():
    done = t.run("plugins", "try", mistaken, "--set", "model.mistake=scatter")
    said = done.stdout.splitlines()[-1]
    t.check(said.startswith('With run.numerics = "one" it is refused: it calls ') and "aten::scatter," in said, done.stdout)
    done = t.run("plugins", "try", models / "libdit.so")
    t.check("run.numerics" not in done.stdout, done.stdout)


def encodes_alike(path, refused, *arguments):
    done = t.run("plugins", "try", path, *arguments)
    for layout, outcome in outcomes(done, ENCODER_LAYOUTS).items():
        t.equal(outcome, "refused" if layout in refused else "ok", f"{path.name} on {layout}\n{done.stdout}")
    t.check("It encodes alike" in done.stdout, done.stdout)
    return done


def test_encoders_encode_alike_and_their_mistakes_are_named():
    fixtures = t.build / "tests/fixture_plugins"
    without_experts = {"expert 2"}
    encodes_alike(fixtures / "mistaken_encoder.so", without_experts)
    done = encodes_alike(fixtures / "bytes_text.so", without_experts | {"tensor 4"}, "--set", "encoder.tried.noise=0.1")  # two heads
    t.check("noise = 0.1; it takes caption [any]" in done.stdout, done.stdout)
    encodes_alike(fixtures / "shifted.so", without_experts)
    for mistake, expected in ENCODER_MISTAKES.items():
        if t.slow or mistake in ENCODER_QUICK:
            named(mistake, fixtures / "mistaken_encoder.so", "encoder.tried", expected, ENCODER_LAYOUTS)


def test_an_encoders_recipe_says_options_and_data():
    fixtures = t.build / "tests/fixture_plugins"
    tree = t.recipe(data=dict(plugin="webdataset", shards=["digits-*.tar"], caption="txt", classes=10, channels=1, size=[8, 8]),
                    encoder__text=dict(plugin="mistaken_encoder", width=16))
    path = t.write_recipe("encoders.toml", tree)
    done = encodes_alike(fixtures / "mistaken_encoder.so", {"expert 2"}, path, "--set", "encoder.text.depth=1")
    t.check("depth = 1, width = 16; it takes caption [any]" in done.stdout, done.stdout)
    t.refused(2, ["names no encoder \"shifted\""], "plugins", "try", fixtures / "shifted.so", path)


def test_a_recipe_says_options_and_data():
    recipe = t.write_recipe("digits.toml", t.recipe(model=dict(depth=3)))
    done = t.run("plugins", "try", models / "libdit.so", recipe, "--set", "model.width=16")
    t.check("depth = 3, heads = 4, patch = 2, width = 16; it takes x [1, 8, 8], t [], label []" in done.stdout, done.stdout)
    t.check("trains alike" in done.stdout, done.stdout)


def test_what_cannot_be_tried_is_refused():
    t.refused(3, ["cannot be read"], "plugins", "try", t.work / "missing.so")
    t.refused(2, ["is of the kind kernels", "models and encoders are tried"], "plugins", "try", t.build / "tests/fixture_plugins/good.so")
    t.refused(2, ["model.heads", "does not divide"], "plugins", "try", models / "libdit.so", "--set", "model.heads=5")
    t.refused(2, ["model.hedas", "heads"], "plugins", "try", models / "libdit.so", "--set", "model.hedas=5")
    recipe = t.write_recipe("other.toml", t.recipe())
    t.refused(2, ["names model \"dit\"", "\"dit_moe\""], "plugins", "try", models / "libdit_moe.so", recipe)


def test_a_crash_has_the_models_name():
    done = t.run("plugins", "try", mistaken, "--set", "model.mistake=crash", code=-signal.SIGABRT)
    t.check("(Aborted): model 'mistaken_model', tried: by itself" in done.stderr, done.all)


t.main(globals())
