"""The program on GPUs that are none (tests/mock_gpu): LibTorch's device type CUDA with memory that the host may not touch, streams
that must wait for one another, and the CPU's operations. What cuda.py asks of a GPU, every part that computes, and mistakes.

Claim (layouts): The program trains, resumes, samples and exports on a device whose memory it cannot read, as on the CPU to 1e-12 in
fp64: the cases of one device, layouts of several, and every objective, sampler, guidance, step cache, optimizer and encoder. Also:
`cuda.py`, `ditto_matrix --table device`

Claim (machine): In the steady state a step waits for its device once and reads what the step before came to, a micro-batch sends two
blocks up, a save waits once, and offloaded gradients are waited for together: counted on a mock GPU.

Claim (machine): On a mock GPU a host that reads device memory, tensors of two devices in one operation, and what is used before it
was waited for are seen in every run. Also: `mock_gpu_order_test.cpp`
"""
# Parts: "one_device" "layouts" "of_cuda" "learns" "samples_as" "mistakes" "kernels"

import json
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tomllib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import adapter  # noqa: E402
import autoencoder  # noqa: E402
import cuda  # noqa: E402
import imagen_texts  # noqa: E402
import networks  # noqa: E402
import text_encoders as texts  # noqa: E402

GPUS = 4
cuda.TRANSPORT = "mock_gpu"
cuda.LARGE = dict(run=dict(steps=4, batch=8, micro_batch=4, precision="bf16"), model=dict(plugin="dit", depth=6, width=64, heads=4, patch=2),
                  data=t.synthetic(height=16, width=16, content="noise"))
cuda.gpus = lambda: GPUS
cuda.ONE_GPU = {"MOCK_GPUS": "1", "LD_PRELOAD": str(t.build / "tests/mock_gpu/mock_gpu.so")}  # there before the program begins
t.environment |= {"DITTO_PLUGIN_PATH": str(t.build / "tests/mock_gpu"), "MOCK_GPUS": str(GPUS)}

LAYOUTS = ["shard=2 shard_plugin=fsdp", "tensor=2 sequence=true", "pipeline=2 pipeline_plugin=pipeline"]
MORE_LAYOUTS = [
    "replicate=2", "shard=2 shard_plugin=zero1", "shard=2 shard_plugin=zero2", "context=2 context_plugin=ring",
    "context=2 context_plugin=ulysses", "context=2 context_plugin=fastseq", "tensor=2 shard=2 shard_plugin=fsdp recompute=blocks",
    "context=2 context_plugin=ring tensor=2 sequence=true"]


def fixtures(*names):
    """Plugins of tests/fixture_plugins, beside the mock."""
    folder = t.work / "fixtures"
    folder.mkdir(exist_ok=True)
    for name in names:
        shutil.copy(t.build / f"tests/fixture_plugins/{name}.so", folder)
    return "--plugin-path", folder


# --- tables of layouts ---------------------------------------------------------------------------------------------------


def test_one_device_trains_as_one_rank_on_the_cpu():
    said = cuda.matrix("--table", "device", *(() if t.slow else ("--every", 6)), timeout=1500)
    t.check(t.slow or "of 11 cases" in said, "other cases than are meant to run")


def test_layouts_of_several_gpus_train_as_one_rank_on_the_cpu():
    layouts = LAYOUTS + (MORE_LAYOUTS if t.slow else [])
    cuda.matrix(*(word for layout in layouts for word in ("--layout", layout)), timeout=1500)
    if t.slow:
        cuda.matrix("--model", "dit_moe", "--layout", "expert=2 expert_plugin=expert", timeout=600)


test_layouts_of_two_ranks_that_share_a_gpu_train_as_one_rank_on_the_cpu = cuda.test_two_ranks_that_share_a_gpu_train_as_one_rank_on_the_cpu


# --- what cuda.py asks of a GPU ------------------------------------------------------------------------------------------

test_of_cuda_two_runs_give_the_same_bits = cuda.test_two_runs_give_the_same_bits
test_of_cuda_a_resume_gives_the_bits_of_the_uninterrupted_run = cuda.test_a_resume_gives_the_bits_of_the_uninterrupted_run
test_of_cuda_recomputation_gives_the_same_bits = cuda.test_recomputation_gives_the_same_bits
test_of_cuda_a_model_gives_the_cpus_outputs_and_gradients = cuda.test_a_model_gives_the_cpus_outputs_and_gradients
test_of_cuda_samples_and_exports_of_a_run_on_a_gpu = cuda.test_samples_and_exports_of_a_run_on_a_gpu
test_of_cuda_memory_that_recomputation_and_offload_save = cuda.test_memory_that_recomputation_and_offload_save


def test_of_cuda_a_step_is_timed_beside_a_product_that_the_device_can_make():
    path = t.write_recipe("timed.toml", t.recipe(run=dict(steps=3)))
    done = t.run("bench", "step", path, "--warmup", 1, "--steps", 2, "--json", *t.sets(cuda.on("cuda")))
    timed = json.loads(done.stdout)
    t.check(0 < timed["matmul_tflops"], done.stdout)
    t.check(0 < timed["free_median_s"], "the same steps without run.deterministic are not timed beside it")


def test_of_cuda_more_ranks_than_gpus_are_refused():
    path = t.write_recipe("many.toml", t.recipe(run=dict(steps=1)))
    done = t.train(path, "never", "--local-ranks", GPUS + 1, code=2, **{"run.batch": 2 * (GPUS + 1), "run.micro_batch": 1} | cuda.on("cuda"))
    t.check(f"this machine has {GPUS} GPUs for {GPUS + 1} ranks" in done.stderr, done.stderr)
    done = t.train(path, "never", code=2, env={"MOCK_GPUS": "0"}, **cuda.on("cuda"))
    t.check("this machine has no GPU that CUDA can use" in done.stderr, done.stderr)


# --- each part that computes ---------------------------------------------------------------------------------------------


def plugins(kind):
    return sorted(path.name for path in (t.source / "plugins" / kind).iterdir() if path.is_dir())


def near(a, b, what, bound=1e-12):
    t.check(abs(a - b) <= bound * max(1, abs(a), abs(b)), f"{what}: {a!r} and {b!r}")


def check_learns(name, path, bound=1e-12, words=(), **options):
    """Two steps on either device. The bias of keys is left out: its gradient is rounding alone, of which some optimizers make
    whole steps."""
    for device in ("cpu", "cuda"):
        t.train(path, f"{name}-{device}", *words, **cuda.on(device) | {"run.precision": "fp64", "run.steps": 2} | options)
    here, there = (t.metrics(f"{name}-{device}") for device in ("cpu", "cuda"))
    t.equal((len(here), len(there)), (2, 2), f"{name}: steps")
    for mine, other in zip(here, there):
        for key in ("loss", "grad_norm"):
            near(float(mine[key]), float(other[key]), f"{name}, step {mine['step']}: {key}", bound)
    here, there = (t.tensors_of(t.latest(f"{name}-{device}")) for device in ("cpu", "cuda"))
    t.equal(sorted(here), sorted(there), f"{name}: tensors")
    for key, tensor in here.items():
        if tensor[0] in ("F32", "F64") and not key[1].endswith("qkv.bias"):
            for mine, other in zip(t.numbers(tensor), t.numbers(there[key])):
                near(mine, other, f"{name}: {key}", bound)


def base(name="base", **sections):
    return t.write_recipe(f"{name}.toml", t.recipe(run=dict(name=name, steps=2, batch=8, micro_batch=4), validate=dict(every=2, samples=8),
                                                   **sections))


def test_every_objective_learns_as_on_the_cpu():
    check_learns("diffusion", base())
    check_learns("uncertainty", base("uncertainty", objective=dict(plugin="uncertainty")))
    for objective in ("distill", "repa"):
        check_learns(objective, networks.learning(objective), **{"validate.every": 2})
    check_learns("autoencoder", autoencoder.recipe("autoencoder", objective=dict(kl=0.01)))
    t.equal(plugins("objectives"), ["autoencoder", "diffusion", "distill", "repa", "uncertainty"], "objectives that are tried here")


def test_every_optimizer_learns_as_on_the_cpu():
    for plugin in plugins("optimizers"):
        check_learns(plugin, base(plugin, optimizer=dict(plugin=plugin)), bound=1e-11 if plugin == "adamw8bit" else 1e-12)


def test_an_adapter_learns_as_on_the_cpu():
    check_learns("adapter", adapter.recipe("adapter"))


def bert():
    width, inside, places = 12, 20, 16
    vocabulary = len((texts.GOLDEN / "bert/vocab.txt").read_text().splitlines())
    shapes = {f"embeddings.{name}.weight": [rows, width] for name, rows in (
        ("word_embeddings", vocabulary), ("position_embeddings", places), ("token_type_embeddings", 2))}

    def layer(name, *shape):
        return {f"{name}.weight": [*shape], f"{name}.bias": [shape[0]]}

    shapes |= layer("embeddings.LayerNorm", width) | layer("pooler.dense", width, width)
    for i in range(2):
        block = f"encoder.layer.{i}."
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            shapes |= layer(block + name, width, width)
        shapes |= layer(block + "attention.output.LayerNorm", width) | layer(block + "output.LayerNorm", width)
        shapes |= layer(block + "intermediate.dense", inside, width) | layer(block + "output.dense", width, inside)
    config = dict(num_hidden_layers=2, hidden_size=width, num_attention_heads=3, intermediate_size=inside, vocab_size=vocabulary,
                  max_position_embeddings=places, type_vocab_size=2, hidden_act="gelu", layer_norm_eps=1e-12)
    return str(texts.folder("bert-weights", shapes, config, "BertModel", "bert"))


def of_bert():
    tree = t.recipe(run=dict(name="bert", steps=2, batch=8, micro_batch=4), model=dict(plugin="dit_text", depth=2, width=32, heads=4, patch=2),
                    data=dict(shards=[texts.captioned()], validation_shards=[texts.held_out()], caption="txt"),
                    encoder__text=dict(plugin="bert", weights=bert(), format="transformers", tokens=9, name="text"))
    return t.write_recipe("bert.toml", tree)


def enlarging():
    """Pictures of 8 pixels learned from parts of larger ones, by noised ones of 4."""
    return t.write_recipe("enlarging.toml", t.recipe(
        run=dict(name="enlarging", steps=2, batch=8, micro_batch=4), objective=dict(plugin="diffusion", condition_dropout=0.0),
        data=t.synthetic(classes=0, channels=3, height=16, width=16, content="noise", text_tokens=6, text_width=32),
        encoder__image=dict(plugin="pyramid", size=[4, 4], crop=[8, 8]), encoder__low=dict(plugin="noise_condition"),
        model=dict(plugin="imagen_efficient_unet", embed_dim=64, channel_mult=[1, 1], num_resblocks=[1, 1], atnn_enabled_at=[0, 1],
                   per_head_channels=16, token_length=6, noise_cond_aug=True)))


def test_every_encoder_learns_as_on_the_cpu():
    """`ahead`: in a stream of its own, beside the step."""
    check_learns("identity", base())
    check_learns("texts", texts.recipe("texts"))
    check_learns("texts-ahead", texts.recipe("texts-ahead"), **{"loader.encode_ahead": 1})
    check_learns("bert", of_bert())
    check_learns("fit", imagen_texts.recipe("fit", imagen_texts.shard("fit"), **imagen_texts.said(drop=0.5)))
    t.train(autoencoder.recipe("learned", run=dict(steps=2)), "learned")
    check_learns("latents", autoencoder.latents("latents", weights=str(t.work / "learned")))
    check_learns("enlarging", enlarging(), bound=1e-11)
    t.equal(plugins("encoders"), ["autoencoder_kl", "bert", "clip_text", "fit_text", "identity", "join_text", "noise_condition", "pyramid", "t5"],
            "encoders that are tried here")


# --- sampling ------------------------------------------------------------------------------------------------------------


def samples_of(name, run, device, *words, **options):
    file = t.work / f"{name}-{device}.safetensors"
    t.run("sample", run, "--seeds", "0-3", "--batch", 2, "--save-latents", file, *words, *t.sets(cuda.on(device) | options))
    return t.read_tensors(file)["latents"]


def check_samples(name, run, *words, **options):
    """Latents of either device, in fp64."""
    here, there = (samples_of(name, run, device, *words, **options) for device in ("cpu", "cuda"))
    t.equal((here[0], here[1]), ("F64", there[1]), f"{name}: dtype and shape of latents")
    for mine, other in zip(t.numbers(here), t.numbers(there)):
        near(mine, other, f"{name}: latents")


def trained(name, **sections):
    """In fp64, on the CPU, until no weight that counts is zero."""
    if not (t.work / name).exists():
        path = t.write_recipe(f"{name}.toml", t.recipe(run=dict(name=name, steps=6, batch=8, precision="fp64"),
                                                       lr_schedule=dict(lr=5e-3, warmup=0), **sections))
        t.train(path, name)
    return t.work / name


def test_every_sampler_samples_as_on_the_cpu():
    flow, steps_back = trained("flow"), trained("steps-back", scheduler=dict(plugin="iddpm", variance="fixed_small", prediction="v"))
    for sampler in plugins("samplers"):
        run = steps_back if sampler == "ancestral" else flow
        steps = 200 if sampler == "dopri5" else 4
        check_samples(sampler, run, "--sampler", sampler, "--steps", steps, "--classes", "0-3")


def test_every_guidance_and_cache_samples_as_on_the_cpu():
    flow = trained("flow")
    check_samples("cfg", flow, "--classes", "0-3", "--guidance", 2, "--steps", 3)
    check_samples("autoguidance", flow, "--classes", "0-3", "--steps", 3,
                  **{"guidance.plugin": "autoguidance", "guidance.scale": 3.0, "network.guide.weights": str(networks.guide())})
    check_samples("none", flow, "--classes", "0-3", "--steps", 3, **{"guidance.plugin": "none"})
    t.equal(plugins("guidance"), ["autoguidance", "cfg", "none"], "guidances that are tried here")

    joint = trained("joint", data=t.synthetic(classes=4, text_tokens=6, text_width=12, text_pooled=10),
                    model=dict(plugin="mmdit", depth=3, width=32, heads=2, patch=2))
    draw = random.Random(3)
    t.write_tensors(t.work / "texts.safetensors", {
        name: ("F32", shape, [draw.gauss(0, 1) for _ in range(t.product(shape))])
        for name, shape in (("text", [4, 6, 12]), ("text_pooled", [4, 10]))})
    check_samples("first_block", flow, "--classes", "0-3", "--steps", 6, **{"cache.plugin": "first_block", "cache.threshold": 0.1})
    check_samples("teacache", joint, "--condition", t.work / "texts.safetensors", "--steps", 6,
                  **{"cache.plugin": "teacache", "cache.threshold": 0.1, "cache.coefficients": [1, 0]})
    t.equal(plugins("caches"), ["first_block", "teacache"], "caches that are tried here")


# --- mistakes, and what is counted ---------------------------------------------------------------------------------------


def plant(name, fault, mended=False, **options):
    where = fixtures("faulty_device")
    path = t.write_recipe(f"{name}.toml", t.recipe(run=dict(name=name, steps=3)))
    sets = {"run.output": str(t.work / name), "parallel.strategies": ["faulty_device"], "parallel.device_fault": fault,
            "parallel.mended": mended} | cuda.on("cuda") | options
    words = [t.ditto, "train", path, *where, *t.sets(sets)]
    return subprocess.run(list(map(str, words)), text=True, capture_output=True, cwd=t.work, env=t.environment, timeout=t.patient(240))


MISTAKES = {  # and how the program ends, and what is said
    "host_read": (-signal.SIGSEGV, "mock_gpu: the host reads or writes memory of a GPU"),
    "two_devices": (3, "of tensors on two devices: one of"),
    "no_wait": (5, "nan"),
    "overwritten": (3, "was written while its upload was under way"),
    "no_event": (3, "and has not waited for it"),
    "no_record": (3, "may still use it; call record_stream"),
}


def test_mistakes_are_seen_each_time_and_what_is_right_changes_no_bit():
    cuda.train("without", tree=t.recipe(run=dict(name="without", steps=3)))
    for fault, (code, said) in MISTAKES.items():
        done = plant(f"{fault}-mended", fault, mended=True)
        t.equal(done.returncode, 0, f"{fault}, mended: {done.stderr}")
        t.same_metrics("without", f"{fault}-mended")
        t.same_state("without", f"{fault}-mended")
        for time in range(5 if t.slow else 2):
            done = plant(f"{fault}-{time}", fault)
            t.equal(done.returncode, code, f"{fault}: {done.stderr}")
            t.check(said in done.stderr.lower() if said == "nan" else said in done.stderr, f"{fault}: {done.stderr}")


def counted(name, steps, *words, **options):
    file = t.work / f"{name}.json"
    path = t.write_recipe("counted.toml", t.recipe(run=dict(name="counted", batch=8, micro_batch=4)))
    t.train(path, name, *words, env={"MOCK_GPU_COUNTS": str(file)}, **cuda.on("cuda") | {"run.steps": steps} | options)
    return file


def per_step(name, first=4, last=24, **options):
    """Of a step in the steady state, on average: what steps `first` to `last` take, as the process counts it."""
    few, more = (json.loads(counted(f"{name}-{steps}", steps, **options).read_text()) for steps in (first, last))
    step = {key: (more[key] - few[key]) / (last - first) for key in more}
    print(f"{name}: {step}", flush=True)
    return step


def test_mistakes_aside_a_step_asks_the_device_for_one_ring_and_sends_two_blocks_a_micro_batch():
    for name, options in {
            "flow": {}, "edm": {"scheduler.plugin": "edm"}, "iddpm": {"scheduler.plugin": "iddpm"},
            "scaled": {"run.precision": "fp16"}, "clipped": {"run.clip_norm": 1.0}}.items():
        step = per_step(name, **options)
        t.equal(sorted(step), ["attention_pairs", "downloaded_bytes", "downloads", "host_reads", "launches", "uploaded_bytes", "uploads", "waits", "waits_beside"],
                "what is counted")
        t.check(step["launches"] > 100, f"{name}: less than a step needs: {step}")
        t.equal((step["host_reads"], step["downloads"], step["waits"]), (0, 1, 1), f"{name}: what the host asks for")
        t.check(2 <= step["uploads"] <= 2 * 2, f"{name}: {step['uploads']} uploads in two micro-batches")


def test_mistakes_aside_a_save_waits_once():
    """For whether all is finite. The files' thread waits for the copies, while steps go on."""
    seldom, often = (json.loads(counted(f"saves-{every}", 12, **{"checkpoint.every": every}).read_text()) for every in (12, 3))
    for key, most in (("waits", 1), ("waits_beside", 1), ("host_reads", 0)):
        a_save = (often[key] - seldom[key]) / 3
        t.check(0 <= a_save <= most, f"{key} of a save: {a_save}")
    t.check(often["waits_beside"] > seldom["waits_beside"], "no thread waits for a save's copies")
    t.same_state("saves-3", "saves-12")


def test_mistakes_aside_offloading_waits_for_all_gradients_together():
    for name, options in {"offloaded": {}, "offloaded-bf16": {"run.precision": "bf16"}, "offloaded-clipped": {"run.clip_norm": 1.0}}.items():
        step = per_step(name, last=14, **options | {"parallel.offload": "optimizer"})
        t.equal(step["host_reads"], 0, f"{name}: numbers that are asked for")
        t.check(step["waits"] <= 3, f"{name}: waits for gradients, for whether the update counts, and for the ring: {step['waits']}")
        plain = per_step(name + "-not", last=14, **options)
        t.check(step["uploads"] > plain["uploads"] and step["downloads"] > plain["downloads"], "nothing is offloaded")


def test_mistakes_aside_profilers_are_shown_phases_and_units():
    library = t.build / "tests/libnvtx_names.so"
    if not library.exists():
        raise t.NotRun("the build is without NVTX's header")
    names = t.work / "names"
    for device in ("cpu", "cuda"):
        t.train(base("shown"), f"shown-{device}", env={"NVTX_INJECTION64_PATH": str(library), "NVTX_NAMES": str(names)}, **cuda.on(device))
        t.equal(names.exists(), device == "cuda", f"ranges are shown of a {device}")
    begun = [line.split(" ", 2)[1:] for line in names.read_text().splitlines() if line.startswith("begin ")]
    ended = [line.split(" ")[1] for line in names.read_text().splitlines() if line.startswith("end ")]
    t.equal(sorted(number for number, _ in begun), sorted(ended), "ranges that end")
    shown = [name for _, name in begun]
    for name, least in {"encode": 2, "draws": 4, "forward": 4, "backward": 4, "norm": 2, "update": 2, "block 1 of model 'dit'": 4,
                        "backward of block 1": 4}.items():
        t.check(shown.count(name) >= least, f"{name} is shown {shown.count(name)} times: {sorted(set(shown))}")


def with_kernels(name, steps, kernels, *words, **options):
    """Heads of width 8, samples of 16 tokens; what the device counted."""
    file = t.work / f"{name}.json"
    path = t.write_recipe("kernels.toml", t.recipe(run=dict(name="kernels", batch=8, micro_batch=4, precision="bf16"),
                                                   model=dict(plugin="dit", depth=2, width=32, heads=4, patch=2)))
    t.train(path, name, *words, env={"MOCK_GPU_COUNTS": str(file)},
            **cuda.on("cuda") | {"run.steps": steps, "plugins.kernels": kernels} | options)
    return json.loads(file.read_text())


def test_kernels_learn_as_the_references_and_attention_computes_no_more_than_it_must():
    if not (t.build / "tests/mock_gpu/kernels/mock_cuda.so").exists():
        raise t.NotRun("kernels on a mock GPU: the build is without them (no cublasLt.h, or a sanitizer)")
    with_kernels("kernels-none", 5, [])
    few, more = with_kernels("kernels-few", 3, ["mock_cuda"]), with_kernels("kernels-own", 5, ["mock_cuda"])
    for mine, other in zip(t.metrics("kernels-own"), t.metrics("kernels-none")):
        near(float(mine["loss"]), float(other["loss"]), f"step {mine['step']}: loss", 0.02)
    chosen = (t.work / "kernels-own/run.toml").read_text()
    for op, variant in (("linear", "cuda_blas"), ("mlp_gelu_tanh", "cuda_blas"), ("attention", "cuda_flash")):
        t.check(any(line.strip().startswith(f'"{op} bf16 cuda ') and line.endswith(f'"{variant}"') for line in chosen.splitlines()),
                f"{op} is not computed by {variant}:\n{chosen}")
    # Depth, samples, heads, pairs of tokens; forward, and again in the backward.
    t.equal((more["attention_pairs"] - few["attention_pairs"]) / 2, 2 * 8 * 4 * 16 * 16 * 2, "pairs of a query and a key")
    a_block = {}
    for name, options in {"deterministic": {}, "free": {"run.deterministic": False, "kernels.attention": "cuda_flash"}}.items():
        a_block[name] = launches_a_block(name, **options)
        print(f"launches a block, {name}: {a_block[name]}", flush=True)
    t.check(10 < a_block["deterministic"] <= 60, f"launches a block: {a_block}")
    # The second micro-batch's gradients of a block's weights: of attention and MLP four, and of the modulation. Of both the mean.
    t.check(4 / 2 <= a_block["deterministic"] - a_block["free"] <= 5 / 2, f"launches that products which add save: {a_block}")


def launches_a_block(name, **options):
    """In forward and backward of one of the two micro-batches."""
    counts = {(depth, steps): with_kernels(f"kernels-{name}-{depth}-{steps}", steps, ["mock_cuda"], **options | {"model.depth": depth})["launches"]
              for depth in (2, 4) for steps in (3, 5)}
    return (counts[4, 5] - counts[4, 3] - counts[2, 5] + counts[2, 3]) / 2 / 2 / 2


def kept_by(run):
    """The algorithms in a run's run.toml, and how often its log says that some were chosen."""
    record = tomllib.loads((t.work / run / "run.toml").read_text())["record"]
    said = [line for line in (t.work / run / "log.txt").read_text().splitlines() if "kernels 'mock_cuda' have chosen" in line]
    return record.get("kept", {}).get("mock_cuda", {}), said


def test_kernels_keep_the_algorithms_that_a_run_began_with():
    if not (t.build / "tests/mock_gpu/kernels/mock_cuda.so").exists():
        raise t.NotRun("kernels on a mock GPU: the build is without them (no cublasLt.h, or a sanitizer)")
    with_kernels("kept-whole", 5, ["mock_cuda"])
    kept, said = kept_by("kept-whole")
    for after in ("bias", "gelu", "gelu_back", "sums_of_a"):
        t.check(any(shape.endswith(" " + after) for shape in kept), f"no product ends with {after}:", *kept)
    t.equal(len(said), 1, "lines that say how many were chosen")
    t.check(f"have chosen {len(kept)} algorithms" in said[0], said[0])
    state = json.loads((t.latest("kept-whole") / "state.json").read_text())
    for shape, way in kept.items():
        t.equal(state["extra"].get(f"kernels.mock_cuda: {shape}"), way, f"what the checkpoint notes of {shape}")

    with_kernels("kept-parts", 3, ["mock_cuda"])
    with_kernels("kept-parts", 5, ["mock_cuda"])
    t.check(kept.items() <= kept_by("kept-parts")[0].items(), "algorithms of a run that was resumed")
    t.equal(len(kept_by("kept-parts")[1]), 1, "a resumed run chooses none")
    t.same_metrics("kept-whole", "kept-parts")
    t.same_state("kept-whole", "kept-parts")

    with_kernels("kept-anew", 3, ["mock_cuda"])
    with_kernels("kept-anew", 5, ["mock_cuda"], "--allow-change", "kernels.mock_cuda")
    t.check("equal bits end here: kernels 'mock_cuda' choose anew" in (t.work / "kept-anew/log.txt").read_text(), "nobody says so")
    t.equal(len(kept_by("kept-anew")[1]), 2, "a run that may choose anew does")

    with_kernels("kept-receipts", 3, ["mock_cuda"], **{"record.receipts": True})
    t.run("replay", t.work / "kept-receipts")
    file = t.work / "kept-receipts/run.toml"
    shape, way = next(iter(kept_by("kept-receipts")[0].items()))
    file.write_text(file.read_text().replace(way, f"{way} 1"))
    t.refused(2, [shape, "is no algorithm"], "replay", t.work / "kept-receipts")

    with_kernels("kept-none", 3, [])
    record = tomllib.loads((t.work / "kept-none/run.toml").read_text())["record"]
    t.check("kept" not in record, "a run whose kernels keep nothing notes that")


def test_an_mlp_of_one_piece_learns_as_its_parts():
    if not (t.build / "tests/mock_gpu/kernels/mock_cuda.so").exists():
        raise t.NotRun("kernels on a mock GPU: the build is without them (no cublasLt.h, or a sanitizer)")
    with_kernels("mlp-whole", 5, ["mock_cuda"])
    with_kernels("mlp-parts", 5, ["mock_cuda"], **{"kernels.mlp_gelu_tanh": "reference"})
    chosen = [(t.work / f"mlp-{name}/run.toml").read_text() for name in ("whole", "parts")]
    t.equal([f'"{op} bf16 cuda ' in text for text in chosen for op in ("mlp_gelu_tanh", "linear_gelu_tanh")], [True, False, False, True],
            "the ops of an MLP")
    for mine, other in zip(t.metrics("mlp-whole"), t.metrics("mlp-parts")):
        near(float(mine["loss"]), float(other["loss"]), f"step {mine['step']}: loss of the parts", 0.01)


def test_mistakes_aside_each_rank_counts():
    ranks = counted("counted-ranks", 2, "--local-ranks", 2)
    for rank in range(2):
        t.check(json.loads(pathlib.Path(f"{ranks}.{rank}").read_text())["launches"] > 100, f"rank {rank} counts nothing")


def test_of_cuda_variables_that_give_up_equal_bits_are_refused():
    path = t.write_recipe("equal.toml", t.recipe(run=dict(steps=1)))
    for name, value in (("NCCL_ALGO", "NVLS"), ("NCCL_ALGO", "^Ring"), ("CUBLAS_WORKSPACE_CONFIG", ":0:0")):
        done = t.train(path, "never", code=2, env={name: value}, **cuda.on("cuda"))
        t.check(name in done.stderr and value in done.stderr, done.stderr)
        t.check("run.deterministic" in done.stderr, done.stderr)
        t.train(path, f"free-{name}-{value.strip('^:').replace(':', '')}", env={name: value}, **cuda.on("cuda") | {"run.deterministic": False})
    t.train(path, "tree", env={"NCCL_ALGO": "Tree"}, **cuda.on("cuda"))


if __name__ == "__main__":
    t.main(globals())
