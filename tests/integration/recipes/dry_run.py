"""`ditto train --dry-run` says, in one process and without data, what a run on any number of ranks takes. What it says of
the tensors that a rank keeps is what a real run then keeps, to the byte.

Claim (machine): A dry run says what each of any number of ranks will hold, to the byte for weights, copies, gradients, states
and average, and activations within 15 %, without data, memory or ranks. Also: and on 8 ranks `dry_run.py --slow`
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

layouts = {
    "ddp 8": dict(replicate=8),
    "fsdp 8": dict(shard=8, shard_plugin="fsdp"),
    "fsdp 4 x tensor 2": dict(shard=4, shard_plugin="fsdp", tensor=2),
    "pipeline 2 x ddp 4": dict(pipeline=2, replicate=4),
    "tensor 2 with sequence x ring 2 x zero1 2": dict(tensor=2, sequence=True, context=2, context_plugin="ring", shard=2,
                                                      shard_plugin="zero1"),
    "hsdp 2 x 4": dict(replicate=2, shard=4, shard_plugin="fsdp"),
}
kept = ("parameters", "copies", "gradients", "optimizer", "ema", "frozen")


def dry(path, *arguments, **options):
    """What it says, and what it took: seconds of a processor, whatever else the machine does, and bytes of resident memory."""
    given = {key.replace("__", "."): value for key, value in options.items()}
    program = ("import os, resource, subprocess, sys; done = subprocess.run(sys.argv[1:]); "
               "used = resource.getrusage(resource.RUSAGE_CHILDREN); "
               "print(used.ru_utime + used.ru_stime, used.ru_maxrss, file=sys.stderr); sys.exit(done.returncode)")
    words = [t.sys.executable, "-c", program, t.ditto, "train", str(path), *t.sets(given), "--dry-run", "--json", *arguments]
    done = t.subprocess.run(words, capture_output=True, text=True, cwd=t.work, env=t.environment, timeout=t.patient(240))
    t.equal(done.returncode, 0, f"exit code of {' '.join(words)}\n{done.stdout}{done.stderr}")
    seconds, kilobytes = done.stderr.split()[-2:]
    return json.loads(done.stdout), float(seconds), 1024 * int(kilobytes)


def measured(path, folder, ranks, **options):
    """The table of a real run: by rank, bytes by what they are for."""
    said = t.train(path, folder, "--local-ranks", ranks, "--trace", "comm", **options).all.splitlines()
    at = next(i for i, line in enumerate(said) if "bytes of tensors after it" in line)
    names = said[at + 1].split()[-7:]
    rows = [line.split()[-8:] for line in said[at + 2:at + 2 + ranks]]
    return {int(row[0]): dict(zip(names, map(int, row[1:]))) for row in rows}


def compare(name, path, ranks, layout, **options):
    options |= {"parallel__" + key: value for key, value in layout.items()}
    said, _, _ = dry(path, "--ranks", str(ranks), **options)
    found = measured(path, name.replace(" ", "_"), ranks, **options)
    for which in ("first", "largest"):
        rank, expected = said[which]["rank"], said[which]["bytes"]
        for share in kept:
            t.equal(found[rank][share], expected[share], f"{name}: bytes of {share} on rank {rank}")
        real, guess = found[rank]["activations"], expected["activations"]
        print(f"  {name}, rank {rank}: activations {real}, estimated {guess}, {100 * guess / real - 100:+.1f} %")
        t.check(abs(guess - real) <= 0.15 * real, f"{name}, rank {rank}: activations of {real} bytes, estimated {guess}")
    # Where activations differ by rank, two that hold nearly as much may change places.
    most, largest = max(sum(row.values()) for row in found.values()), sum(found[said["largest"]["rank"]].values())
    t.check(most <= 1.15 * largest, f"{name}: a rank holds {most} bytes, the one that is said to hold most {largest}")


def small(**sections):
    return t.write_recipe("small.toml", t.recipe(
        run=dict(name="small", steps=2, batch=16), model=dict(depth=4, width=128, heads=4, patch=1), **sections))


def with_experts(**model):
    tree = t.recipe(run=dict(name="experts", steps=2, batch=16), data=t.synthetic(channels=4, height=16, width=16))
    tree["model"] = dict(plugin="dit_moe", depth=4, width=96, heads=4, patch=2, experts=4, top_k=2) | model
    return t.write_recipe("experts.toml", tree)


def with_teacher(weights):
    """Learns from a network that does not; its weights are a run's."""
    tree = t.recipe(run=dict(name="taught", steps=2, batch=16), model=dict(depth=4, width=128, heads=4, patch=1))
    tree["network.teacher"] = dict(weights=str(weights))
    tree["objective"] = dict(plugin="distill")
    return t.write_recipe("taught.toml", tree)


def preset(name, batch):
    """A DiT of the paper, on what a picture of 256 x 256 is encoded as."""
    tree = t.recipe(run=dict(name="preset", steps=2, batch=batch),
                    data=t.synthetic(channels=4, height=32, width=32, classes=1000))
    tree["model"] = dict(plugin="dit", preset=name)
    return t.write_recipe("preset.toml", tree)


fsdp_2 = dict(shard=2, shard_plugin="fsdp")


def test_bytes_are_those_of_a_real_run():
    if t.slow:
        for name, layout in layouts.items():
            compare(name, small(), 8, layout)
        compare("hsdp 2 x 4 in bf16", small(), 8, layouts["hsdp 2 x 4"], run__precision="bf16")
        compare("ddp 8 in bf16", small(), 8, layouts["ddp 8"], run__precision="bf16")
        return
    compare("fsdp 2 in bf16", small(), 2, fsdp_2, run__precision="bf16")
    compare("two chunks a rank", small(), 2, dict(pipeline=2, virtual_stages=2), run__micro_batch=4)


def test_bytes_of_what_is_made_again_or_lies_elsewhere():
    compare("offload, fsdp 2 in bf16", small(), 2, fsdp_2 | dict(offload="optimizer"), run__precision="bf16")
    if not t.slow:
        return
    compare("offload", small(), 2, dict(offload="optimizer"))
    compare("half of offload", small(), 2, dict(offload="optimizer", offload_bytes=6_000_000))
    compare("recomputed attention, fsdp 2 in bf16", small(), 2, fsdp_2 | dict(recompute="attention"), run__precision="bf16")
    compare("recomputed blocks, pipeline 2", small(), 2, dict(recompute="blocks", pipeline=2), run__micro_batch=4)


def test_what_is_offloaded_is_not_the_accelerators():
    said, _, memory = dry(preset("XL/2", 256), "--ranks", "1", run__device="cuda", parallel__offload="optimizer",
                          run__precision="bf16")
    kinds = {share: said["first"]["bytes"][share] for share in kept}
    t.equal(kinds, dict(parameters=0, copies=2 * said["parameters"], gradients=0, optimizer=0, ema=0, frozen=0), "bytes on the GPU")
    t.check(memory < 1e9, f"it took {memory} bytes")


def test_bytes_of_a_pipelines_chunks():
    # The experts' block costs as much as the three before it, so that stages are 3 blocks and 1.
    compare("expert 2 x pipeline 2 with experts on the last stage", with_experts(moe_every=4, top_k=4), 4, dict(expert=2, pipeline=2),
            run__micro_batch=4)
    if not t.slow:
        return
    compare("four chunks a rank", small(), 4, dict(pipeline=2, virtual_stages=4, replicate=2), run__micro_batch=2, model__depth=8)
    compare("conditioning on every stage", small(), 2, dict(pipeline=2, pipeline_conditioning="replicated"), run__micro_batch=4)
    compare("expert 2 x fsdp 2 x tensor 2", with_experts(moe_every=4), 8, dict(expert=2, tensor=2) | fsdp_2, run__micro_batch=4)


def test_a_pipelines_ranks_that_have_more_tokens_leave_more():
    # Of three tokens the second tensor rank has two, of both blocks of one micro-batch or of one block of both.
    tree = t.recipe(run=dict(name="uneven", steps=2, batch=16, micro_batch=8), data=t.synthetic(height=6, width=2),
                    model=dict(depth=2, width=96, heads=4, patch=2), parallel=dict(tensor=2, sequence=True))
    path, more = t.write_recipe("uneven.toml", tree), []
    for ranks, pipeline in (("2", 1), ("4", 2)):
        said, _, _ = dry(path, "--ranks", ranks, parallel__pipeline=pipeline)
        t.equal(said["largest"]["rank"], 1, f"the rank that holds most, of {ranks}")
        more.append(said["largest"]["bytes"]["activations"] - said["first"]["bytes"]["activations"])
    t.check(0 < more[0] <= more[1], f"bytes of a token in both blocks: {more}")
    compare("tokens that two ranks divide unevenly", path, 4, dict(pipeline=2))


def test_bytes_of_a_network_that_does_not_learn():
    path = small()
    t.train(path, "teacher", run__steps=0)
    compare("teacher on fsdp 2", with_teacher(t.work / "teacher"), 2, fsdp_2)
    if not t.slow:
        return
    compare("teacher on tensor 2 in bf16", with_teacher(t.work / "teacher"), 2, dict(tensor=2, sequence=True), run__precision="bf16")


def test_bytes_of_sizes_of_the_paper():
    if not t.slow:
        return
    compare("S-2 on fsdp 8", preset("S/2", 8), 8, layouts["fsdp 8"])
    # Six that need no more than 11 GB on all ranks together.
    others = {"pipeline 4 x ddp 2": dict(pipeline=4, replicate=2), "zero2 8": dict(shard=8, shard_plugin="zero2")}
    for name, layout in (layouts | others).items():
        if name not in ("ddp 8", "pipeline 2 x ddp 4"):
            compare(f"B-2 on {name}", preset("B/2", 8), 8, layout, run__micro_batch=1)


def test_large_models_take_seconds():
    path = preset("XL/2", 256)
    for ranks, options in ((1, {}), (48, dict(parallel__shard=24, parallel__shard_plugin="fsdp", parallel__tensor=2)),
                           (1024, dict(parallel__pipeline=4, parallel__tensor=4))):
        said, seconds, memory = dry(path, "--ranks", str(ranks), **options)
        # The paper's 675 M count the table of positions, which is not learned, and the outputs of a learned variance.
        t.equal(said["parameters"] + 256 * 1152 + 16 * 1153, 675129632, "parameters of DiT-XL/2")
        t.check(seconds < 10 and memory < 2e9, f"{ranks} ranks took {seconds:.1f} s and {memory} bytes")
    dit_text = t.write_recipe("nemo.toml", t.recipe(
        run=dict(name="nemo", steps=2, batch=256), ema=dict(enabled=False),
        model=dict(plugin="dit_text", preset="7B/2"),
        data=t.synthetic(channels=16, height=64, width=64, classes=0, text_tokens=512, text_width=1024)))
    said, seconds, memory = dry(dit_text, "--ranks", "512", "--text-length", "512", parallel__shard=64,
                                parallel__shard_plugin="fsdp", parallel__tensor=8, run__precision="bf16")
    t.check(seconds < 10 and memory < 2e9, f"dit_text took {seconds:.1f} s and {memory} bytes")
    t.equal(said["tokens_per_sample"], 1024, "tokens of a sample")
    t.check(6e9 < said["parameters"] < 1.2e10, f"{said['parameters']} parameters")


AUTOENCODER, AUTOENCODER_SD, T5_XXL, CLIP_L, CLIP_L_PROJECTED, CLIP_G = 83819683, 83653863, 4762310656, 123060480, 123650304, 694659840
T5_11B = 4864791552


def test_adapters_of_published_models_and_their_encoders():
    """Their frozen weights are as many as the models' own classes have (tests/golden/models, and transformers' and diffusers' of encoders)."""
    encoders = {"sd3_medium": {"image": AUTOENCODER, "clip": CLIP_L_PROJECTED, "giant": CLIP_G, "t5": T5_XXL},
                "flux": {"image": AUTOENCODER, "clip": CLIP_L, "t5": T5_XXL}, "wan_1_3b": {}}
    for name, frozen, learned in (("sd3_medium", 2028328000, 24 * 2 * 16 * (4 * 1536 + 2 * 1536) - 16 * 2 * 1536),
                                  ("flux", 11901408320, 19 * 2 * 16 * (4 + 2) * 3072 + 38 * 16 * (4 + 6) * 3072),
                                  ("wan_1_3b", 1418996800, 30 * 32 * (4 + 2 + 2 + 3 + 2) * 1536)):
        said, seconds, memory = dry(t.source / "configs" / f"{name}_lora.toml", "--ranks", "8")
        t.equal(said["frozen_parameters"], {"model": frozen} | {f"encoder.{one}": count for one, count in encoders[name].items()},
                f"frozen parameters of {name}")
        t.equal(said["parameters"], learned, f"learned parameters of {name}")
        t.check(seconds < 10 and memory < 2e9, f"{name} took {seconds:.1f} s and {memory} bytes")


def test_pixart_and_its_encoders():
    said, seconds, memory = dry(t.source / "configs/pixart_xl2.toml", "--ranks", "8")
    t.equal(said["frozen_parameters"], {"encoder.image": AUTOENCODER_SD, "encoder.text": T5_XXL}, "frozen parameters")
    t.equal(said["parameters"], published("pixart_xl2"), "learned parameters")
    t.check(seconds < 10 and memory < 2e9, f"it took {seconds:.1f} s and {memory} bytes")


def test_stable_diffusion_and_its_encoders():
    for name, encoders, tokens in (("sd1", {"image": AUTOENCODER_SD, "text": CLIP_L}, 64 * 64),
                                   ("sdxl", {"image": AUTOENCODER_SD, "clip": CLIP_L, "giant": CLIP_G}, 128 * 128)):
        said, seconds, memory = dry(t.source / f"configs/{name}.toml", "--ranks", "1")
        t.equal(said["frozen_parameters"], {f"encoder.{one}": count for one, count in encoders.items()}, f"frozen parameters of {name}")
        t.equal((said["parameters"], said["tokens_per_sample"]), (published(f"unet_{name}"), tokens), f"{name}: learned parameters, places")
        t.check(seconds < 10 and memory < 2e9, f"{name} took {seconds:.1f} s and {memory} bytes")


def test_imagens_trainings():
    """Learned numbers, places of a sample as it is learned from, samples of a rank: fields of NeMo's YAML files."""
    for name, case, places, batch in (("base64_500m", "500m_res_64", 64, 128), ("base64_500m_edm", "500m_res_64", 64, 48),
                                      ("base64_500m_online", "500m_res_64", 64, 48), ("base64_2b", "2b_res_64", 64, 32),
                                      ("sr256_400m", "400m_res_256", 256, 16), ("sr256_600m", "600m_res_256", 256, 64),
                                      ("sr1024_600m", "400m_res_1024", 256, 64)):
        said, seconds, memory = dry(t.source / f"configs/imagen_{name}.toml", "--ranks", "8")
        t.equal([said[key] for key in ("parameters", "tokens_per_sample", "micro_batch")], [published(f"imagen_{case}"), places**2, batch // 8], name)
        t.equal(said.get("frozen_parameters", {}), {"encoder.t5": T5_11B} if name.endswith("online") else {}, f"frozen parameters of {name}")
        t.check("unknown" not in said, f"{name}: {said.get('unknown')}")
        t.check(seconds < 10 and memory < 2e9, f"{name} took {seconds:.1f} s and {memory} bytes")


def test_cascades():
    """Of every stage what its recipe says alone; and a quarter of an hour of emoji, by operations of a forward."""
    said, seconds, memory = dry(t.source / "configs/imagen.toml", "--ranks", "8")
    cases = dict(imagen_base64_500m="500m_res_64", imagen_sr256_600m="600m_res_256", imagen_sr1024_600m="400m_res_1024")
    t.equal({stage: one["parameters"] for stage, one in said.items()}, {stage: published(f"imagen_{case}") for stage, case in cases.items()}, "stages")
    for stage in cases:
        t.equal(said[stage], dry(t.source / f"configs/{stage}.toml", "--ranks", "8")[0], f"{stage} alone")
    t.check(seconds < 30 and memory < 2e9, f"it took {seconds:.1f} s and {memory} bytes")
    said, _, _ = dry(t.source / "configs/emoji_cascade/cascade.toml")
    forward = {stage: one["flops_per_step"] / 3 / one["micro_batch"] / 1e9 for stage, one in said.items()}
    print("  GFLOP of a forward as a stage learns: " + ", ".join(f"{stage} {one:.2f}" for stage, one in forward.items()))
    t.check(list(forward) == ["base", "sr32", "sr64"] and all(0.1 < one < 0.3 for one in forward.values()), forward)


def published(case):
    """Learned numbers of the original class, as tests/golden/models has counted them."""
    return json.loads((t.source / f"tests/golden/models/{case}.json").read_text())["parameters"]


def experts_of(D=2048, depth=16, experts=64, H=1024, keys=8 * 64, numbers=16 * 4, classes=1000):
    attention = D * (D + 2 * keys) + D + 2 * keys + D * D + D
    block = 6 * D * D + 6 * D + attention + D * experts + experts + experts * (2 * D * H + H + D)
    around = numbers * D + D + 256 * D + D + D * D + D + (classes + 1) * D + 2 * D * D + 2 * D + D * numbers + numbers
    return depth * block + around


def test_recipes_at_full_size():
    """Parameters, tokens of a sample (the largest) and samples of a micro-batch, of factories of NeMo and scripts of OpenDiT."""
    seven = published("nemo_dit_7b")
    thirty = published("moviegen_30b") - 48 * 2 * 2 * 128  # without its norms of queries and keys
    for name, ranks, *expected in (("nemo_xl", 8, published("nemo_dit_xl"), 2048, 1),
                                   ("nemo_7b", 512, seven, 256, 9),
                                   ("nemo_7b_pack", 512, seven, 256, 9),
                                   ("nemo_7b_256p_joint", 512, seven, 8192, 1),
                                   ("moviegen_30b_1", 512, thirty, 256, 6),
                                   ("moviegen_30b_2", 512, thirty, 8192, 1),
                                   ("moviegen_30b_3", 512, thirty, 73728, 1),
                                   ("ec_dit_1b", 32, experts_of(), 256, 72),
                                   ("opendit_xl2", 8, published("dit_sit_xl2"), 256, 180),
                                   ("opendit_vdit", 2, published("dit_vdit_xl222"), 2048, 1)):
        said, seconds, memory = dry(t.source / f"configs/{name}.toml", "--ranks", str(ranks), "--text-length", "512")
        t.equal([said[key] for key in ("parameters", "tokens_per_sample", "micro_batch")], expected, name)
        t.check("unknown" not in said, f"{name}: {said.get('unknown')}")
        print(f"  {name}: {said['parameters']} parameters, a rank holds {said['largest']['total'] / 1e9:.1f} GB")
        t.check(seconds < 10 and memory < 2e9, f"{name} took {seconds:.1f} s and {memory} bytes")


def test_samples_of_their_own_sizes_count_as_the_largest():
    tree = t.recipe(run=dict(name="sizes", steps=2, batch=16), batch=dict(plan="packs", tokens=80, sizes=["4x4", "8x8"]),
                    data=t.synthetic(sizes=["4x4", "8x8", "16x16"]))
    said, _, _ = dry(t.write_recipe("sizes.toml", tree), "--ranks", "1")
    t.equal((said["size"], said["tokens_per_sample"], said["micro_batch"]), ("8x8", 16, 5), "the largest size, its packs")
    alone, _, _ = dry(t.write_recipe("alone.toml", tree | {"data": t.synthetic(), "batch": dict(plan="contiguous")}))
    t.equal(said["flops"], alone["flops"], "operations")
    tree["batch"] = dict(plan="contiguous", sizes=["1x8x8"])
    t.refused(2, ["data", "image", "batch.sizes"], "train", t.write_recipe("none.toml", tree), "--dry-run")


def test_neither_data_nor_folder_is_needed():
    path = t.write_recipe("nothing.toml", t.recipe(
        data=dict(shards=["/nowhere/*.tar"], validation_shards=["/nowhere/*.tar"]), validate=dict(every=2)))
    t.run("train", path, "--dry-run", "--set", "run.device=cuda")
    t.equal(sorted(p.name for p in t.work.iterdir() if p.is_dir() and p.name == "runs"), [], "folders")


def test_operations_by_unit_and_part():
    said, _, _ = dry(preset("XL/2", 256))
    D, T, L = 1152, 256, 28
    blocks = said["flops"]["blocks"]
    t.equal(blocks["linear"], 6.0 * 256 * L * (T * 12 + 6) * D * D, "operations of the blocks' layers")
    t.equal(blocks["attention"], 6.0 * 256 * L * 2 * T * T * D, "operations of attention")
    t.equal(said["flops_per_step"], sum(sum(parts.values()) for parts in said["flops"].values()), "operations of a step")


def test_ranks_that_a_layout_does_not_divide_are_refused():
    path = small()
    t.refused(2, ["tensor 2", "world size 3"], "train", path, "--dry-run", "--ranks", "3", "--set", "parallel.tensor=2")
    t.refused(2, ["parallel.tensor", "3 does not divide"], "train", path, "--dry-run", "--ranks", "3", "--set",
              "parallel.tensor=3")


if __name__ == "__main__":
    t.main(globals())
