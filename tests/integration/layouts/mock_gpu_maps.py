"""UNets on GPUs that are none (mock_gpu.py): maps with channels first and last, and the rows that norm them. Convolutions are
LibTorch's, of a GPU cuDNN's, and so the CPU's here.

Claim (layouts): UNets train on a device whose memory the host cannot read, however their maps lie, as on the CPU to 1e-11 in fp64, by
the rows of GPUs where they have some; no number of theirs is read on the host, also where it is measured how maps are to lie. Also:
both formats and precisions of each in `mock_gpu_maps.py --slow`
"""
# Parts: "learn" "maps_ask" "sizes" "normed"

import itertools
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import mock_gpu as mock  # noqa: E402

TEXT = dict(text_tokens=6, text_width=32)
UNETS = {
    "unet_sd": dict(block_out_channels=[32, 64], down_block_types=["CrossAttnDownBlock2D", "DownBlock2D"],
                    up_block_types=["UpBlock2D", "CrossAttnUpBlock2D"], layers_per_block=[1], attention_head_dim=[4]),
    "imagen_efficient_unet": dict(embed_dim=64, channel_mult=[1, 2], num_resblocks=[1, 2], atnn_enabled_at=[0, 1], per_head_channels=16,
                                  token_length=TEXT["text_tokens"]),
}


def unet(model, name, **run):
    return t.write_recipe(f"{name}.toml", t.recipe(
        run=dict(name=name, steps=2, batch=8, micro_batch=4) | run, model=dict(plugin=model) | UNETS[model] | (
            {"low_res_cond": False} if model.startswith("imagen") else {}),
        data=t.synthetic(classes=0, channels=3, height=16, width=16, content="noise", **TEXT), objective=dict(plugin="diffusion", condition_dropout=0.0)))


def test_maps_learn_as_on_the_cpu_however_they_lie():
    few = zip(UNETS, ("channels_first", "channels_last"))
    for model, format in itertools.product(UNETS, ("channels_first", "channels_last")) if t.slow else few:
        mock.check_learns(f"{model}-{format}", unet(model, f"{model}-{format}"), bound=1e-11, **{"run.memory_format": format})


def test_maps_ask_the_device_for_one_ring_a_step():
    """How they lie is measured before the first step, once."""
    for model in UNETS:
        file = t.work / f"{model}-measured.json"
        t.train(unet(model, f"measured-{model}"), f"measured-{model}", env={"MOCK_GPU_COUNTS": str(file)}, **mock.cuda.on("cuda"))
        t.equal(json.loads(file.read_text())["host_reads"], 0, f"{model}: numbers that are read while it is measured")
        few, more = ({}, {})
        for steps, counts in ((4, few), (12, more)):
            file = t.work / f"{model}-{steps}.json"
            t.train(unet(model, f"counted-{model}"), f"counted-{model}-{steps}", env={"MOCK_GPU_COUNTS": str(file)}, **mock.cuda.on("cuda") | {"run.steps": steps})
            counts.update(json.loads(file.read_text()))
        step = {key: (more[key] - few[key]) / 8 for key in more}
        print(f"{model}: {step}", flush=True)
        t.check(step["launches"] > 100, f"{model}: less than a step needs: {step}")
        t.equal((step["host_reads"], step["downloads"], step["waits"]), (0, 1, 1), f"{model}: what the host asks for")
        noted = [line for line in (t.work / f"counted-{model}-12/run.toml").read_text().splitlines() if line.startswith("memory_format")]
        t.check(len(noted) == 1 and "channels_" in noted[0], f"{model}: run.toml notes {noted}")


def test_sizes_beside_a_pooled_text_ask_the_device_for_no_more():
    path = t.write_recipe("sizes.toml", t.recipe(
        run=dict(name="sizes", steps=2, batch=8, micro_batch=4), objective=dict(plugin="diffusion", condition_dropout=0.0),
        model=dict(plugin="unet_sd", addition_embed_type="text_time", addition_time_embed_dim=8) | UNETS["unet_sd"],
        data=t.synthetic(classes=0, channels=3, height=16, width=16, content="noise", text_pooled=10, **TEXT)))
    mock.check_learns("sizes", path, bound=1e-11, **{"run.memory_format": "channels_last"})
    if not t.slow:
        return
    counts = []
    for steps in (4, 12):
        file = t.work / f"sizes-{steps}.json"
        t.train(path, f"counted-sizes-{steps}", env={"MOCK_GPU_COUNTS": str(file)}, **mock.cuda.on("cuda") | {
            "run.steps": steps, "run.memory_format": "channels_last"})
        counts.append(json.loads(file.read_text()))
    step = {key: (counts[1][key] - counts[0][key]) / 8 for key in counts[1]}
    t.equal((step["host_reads"], step["downloads"], step["waits"]), (0, 1, 1), "sizes: what the host asks for")


def test_maps_are_normed_by_own_rows():
    if not (t.build / "tests/mock_gpu/kernels/mock_cuda.so").exists():
        raise t.NotRun("kernels on a mock GPU: the build is without them (no cublasLt.h, or a sanitizer)")
    few = [("unet_sd", "channels_last", "bf16"), ("imagen_efficient_unet", "channels_first", "fp32")]
    for model, format, precision in itertools.product(UNETS, ("channels_first", "channels_last"), ("fp32", "bf16")) if t.slow else few:
        name = f"rows-{model}-{format}-{precision}"
        for kernels in ([], ["mock_cuda"]):
            t.train(unet(model, name), f"{name}-{len(kernels)}", **mock.cuda.on("cuda") | {
                "run.precision": precision, "run.memory_format": format, "plugins.kernels": kernels})
        for mine, other in zip(t.metrics(f"{name}-1"), t.metrics(f"{name}-0")):
            mock.near(float(mine["loss"]), float(other["loss"]), f"{name}, step {mine['step']}: loss", {"fp32": 1e-3, "bf16": 0.02}[precision])
        chosen = [line for line in (t.work / f"{name}-1/run.toml").read_text().splitlines() if line.strip().startswith('"group_norm ')]
        t.check(chosen and all(line.endswith('"cuda"') for line in chosen), f"{name}: norms are computed by", *chosen)


if __name__ == "__main__":
    t.main(globals())
