"""Autoencoder and text encoders of diffusers and transformers, as peers of Ditto's: one process a measurement, so that its memory is
that of one.

    encoders.py save FOLDER                                           random weights, which both sides read
    encoders.py time FOLDER WORK PRECISION SETTING BATCH REPEATS THREADS
    encoders.py rates THREADS                                         of products and of convolutions
    encoders.py facts                                                 operations of one sample, and versions

Each prints JSON.
"""
import json
import pathlib
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SIDE = 256
# Stable Diffusion's (runwayml/stable-diffusion-v1-5, vae/config.json), T5 1.1's base and CLIP's ViT-L/14 as published.
VAE = dict(block_out_channels=(128, 256, 512, 512), down_block_types=("DownEncoderBlock2D",) * 4,
           up_block_types=("UpDecoderBlock2D",) * 4, layers_per_block=2, latent_channels=4, norm_num_groups=32, scaling_factor=0.18215,
           force_upcast=False)
T5 = dict(d_model=768, d_kv=64, d_ff=2048, num_layers=12, num_heads=12, vocab_size=32128, feed_forward_proj="gated-gelu",
          layer_norm_epsilon=1e-6)
CLIP = dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12, vocab_size=49408,
            max_position_embeddings=77, hidden_act="quick_gelu", layer_norm_eps=1e-5, bos_token_id=49406, eos_token_id=49407)
TOKENS = {"t5": 128, "clip": 77}
# Maps of the autoencoder at 256 x 256: channels, side.
MAPS = [(128, 256), (256, 128), (512, 64), (512, 32)]


def made(name, attention="eager"):
    import diffusers
    import transformers
    if name.startswith("vae"):
        return diffusers.AutoencoderKL(**VAE)
    if name == "t5":
        return transformers.T5EncoderModel._from_config(transformers.T5Config(**T5), attn_implementation=attention)
    return transformers.CLIPTextModel._from_config(transformers.CLIPTextConfig(**CLIP), attn_implementation=attention)


def save(folder):
    torch.manual_seed(0)
    for name in ("vae", "t5", "clip"):
        made(name).save_pretrained(pathlib.Path(folder) / name)
    return {}


def read(folder, work, precision, setting):
    import diffusers
    import transformers
    kind, dtype = work.partition("_")[0], DTYPES[precision]
    if kind == "vae":
        model = diffusers.AutoencoderKL.from_pretrained(folder / "vae", torch_dtype=dtype)
        if setting.startswith("channels last"):
            model = model.to(memory_format=torch.channels_last)
    else:
        of = transformers.T5EncoderModel if kind == "t5" else transformers.CLIPTextModel
        model = of.from_pretrained(folder / kind, dtype=dtype, attn_implementation=setting.partition(",")[0])
    return model.eval()


def forward_of(model, work, batch, setting="", dtype=torch.float32, device=None):
    """What one repetition calls, on the same inputs each time."""
    maps = torch.channels_last if setting.startswith("channels last") else torch.contiguous_format
    if work == "vae_encode":
        pictures = torch.rand(batch, 3, SIDE, SIDE, device=device) * 2 - 1
        return lambda: model.encode(pictures.to(dtype, memory_format=maps)).latent_dist.sample() * VAE["scaling_factor"]
    if work == "vae_decode":
        latents = torch.randn(batch, 4, SIDE // 8, SIDE // 8, device=device)
        return lambda: model.decode(latents.to(dtype, memory_format=maps) / VAE["scaling_factor"]).sample
    ids = torch.randint(3, 20000, (batch, TOKENS[work]), device=device)
    ids[:, -1] = 1 if work == "t5" else CLIP["eos_token_id"]
    mask = None if ids.is_meta else torch.ones_like(ids)  # whose numbers are looked at
    return lambda: model(input_ids=ids, attention_mask=mask)


@torch.inference_mode()
def timed(folder, work, precision, setting, batch, repeats, threads):
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = read(pathlib.Path(folder), work, precision, setting)
    if setting.endswith("compiled"):
        for part in ("encode", "decode") if work.startswith("vae") else ("forward",):
            setattr(model, part, torch.compile(getattr(model, part)))
    forward = forward_of(model, work, batch, setting, DTYPES[precision])
    seconds = []
    for i in range(1 + repeats + setting.endswith("compiled")):
        began = time.perf_counter()
        forward()
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds[-repeats:]}


def best(call, seconds=0.5):
    call()
    least, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - began)
    return least


@torch.inference_mode()
def rates(threads, maps=MAPS, batch=1):
    """TFLOP/s: of products of squares, and of 3 x 3 convolutions of such maps in the better of both orders of memory."""
    from steps import matmul_tflops
    torch.set_num_threads(threads)
    found = {"products": {}, "convolutions": {}}
    for precision, dtype in DTYPES.items():
        found["products"][precision] = matmul_tflops(precision, "cpu")
        flops = seconds = 0
        for channels, side in maps:
            layer = torch.nn.Conv2d(channels, channels, 3, padding=1, dtype=dtype)
            x = torch.randn(batch, channels, side, side).to(dtype)
            flops += 2 * 9 * batch * channels**2 * side**2
            seconds += min(best(lambda: layer.to(memory_format=order)(x.to(memory_format=order)))
                           for order in (torch.contiguous_format, torch.channels_last))
        found["convolutions"][precision] = flops / seconds / 1e12
    return found


def facts():
    from torch.utils.flop_counter import FlopCounterMode
    import diffusers
    import transformers
    found = {}
    for work in ("vae_encode", "vae_decode", "t5", "clip"):
        with torch.device("meta"):
            forward = forward_of(made(work).eval(), work, 1, device="meta")
        with torch.inference_mode(), FlopCounterMode(display=False) as counter:
            forward()
        found[work] = counter.get_total_flops()
    versions = f"PyTorch {torch.__version__}, diffusers {diffusers.__version__}, transformers {transformers.__version__}"
    return {"flops": found, "versions": versions}


def main():
    what, *rest = sys.argv[1:]
    if what == "save":
        found = save(*rest)
    elif what == "time":
        folder, work, precision, setting, *numbers = rest
        found = timed(folder, work, precision, setting, *map(int, numbers))
    elif what == "rates":
        found = rates(int(rest[0]))
    else:
        found = facts()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
