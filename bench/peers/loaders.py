"""Data loaders in Python, for bench/loader.py; runs in the environment of megatron-energon (./dev peers), each loader unmodified.

    loaders.py prepare FOLDER FIELD_MAP      `energon prepare` of the shards in FOLDER
    loaders.py serve                         measures what lines of JSON on standard input ask for, and answers each with a line:
                                             {"peer": "energon", "folder": …, "kind": "png", "seconds": 1} -> {"samples_per_s": …}

All do what Ditto does: pictures are decoded, cut to a square in the middle, brought to 64 x 64 and made into floats of -1 to 1, channels
first; latents are read as they are; both come in batches of 64 with their classes. Every one has a thread.
"""
import functools
import glob
import io
import json
import os
import sys
import time

import numpy as np
import torch

SIDE, BATCH, WARMUP = 64, 64, 3


def picture(image):
    """Of PIL's: what PIL does fastest."""
    image = image.convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    image = image.resize((SIDE, SIDE), 2, (left, top, left + side, top + side))  # bilinear, with antialiasing
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(127.5).sub_(1)


def batches_of_energon(folder, kind):
    from megatron.energon import DefaultTaskEncoder, SampleDecoder, WorkerConfig, get_loader, get_train_dataset, stateless

    class Encoder(DefaultTaskEncoder):
        decoder = SampleDecoder(image_decode="pil")

        @stateless
        def encode_sample(self, sample):
            sample.image = picture(sample.image) if kind == "png" else sample.image.float()
            return sample

    dataset = get_train_dataset(folder, batch_size=BATCH, shuffle_buffer_size=100, max_samples_per_sequence=100,
                                worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0), task_encoder=Encoder())
    return (batch.image for batch in get_loader(dataset))


def batches_of_webdataset(folder, kind):
    import webdataset

    data = webdataset.WebDataset(sorted(glob.glob(f"{folder}/*.tar")), shardshuffle=100).repeat().shuffle(100)
    if kind == "png":
        data = data.decode("pil").to_tuple("png", "cls").map_tuple(picture, int)
    else:
        data = data.decode().to_tuple("pth", "cls").map_tuple(torch.Tensor.float, int)
    batches = data.batched(BATCH, partial=False,
                           collation_fn=lambda samples: (torch.stack([s[0] for s in samples]), [s[1] for s in samples]))
    return (batch[0] for batch in batches)


def members(folder, extension):
    import spdl.io

    while True:
        for shard in sorted(glob.glob(f"{folder}/*.tar")):
            with open(shard, "rb") as file:
                for name, data in spdl.io.iter_tarfile(file):
                    if name.endswith(extension):
                        yield data


def batches_of_spdl(folder, kind):
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    form = spdl.io.get_video_filter_desc(scale_width=SIDE, scale_height=SIDE, scale_algo="bilinear", scale_mode=None, pix_fmt="rgb24",
                                         filter_desc="crop='min(iw,ih)':'min(iw,ih)'")

    def decoded(data):
        return spdl.io.decode_packets(spdl.io.demux_image(bytes(data)), filter_desc=form)

    def batch_of(frames):
        pixels = torch.from_numpy(spdl.io.to_numpy(spdl.io.convert_frames(frames)))
        return pixels.permute(0, 3, 1, 2).float().div_(127.5).sub_(1)

    def latent(data):
        return torch.load(io.BytesIO(data), weights_only=True).float()

    builder = PipelineBuilder().add_source(members(folder, kind)).pipe(decoded if kind == "png" else latent).aggregate(BATCH)
    pipeline = builder.pipe(batch_of if kind == "png" else torch.stack).add_sink(4).build(num_threads=1)
    with pipeline.auto_stop():
        yield from pipeline.get_iterator(timeout=30)


@functools.cache
def stored(folder, extension):
    return [data for data in taken(folder, extension)]


def taken(folder, extension):
    import tarfile

    for shard in sorted(glob.glob(f"{folder}/*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                if member.name.endswith(extension):
                    yield tar.extractfile(member).read()


def batches_of_jpegs(folder, kind):
    """libjpeg-turbo alone, at half of the sides: into one buffer, of files in memory."""
    import simplejpeg

    files = stored(folder, kind)
    height, width = simplejpeg.decode_jpeg_header(files[0])[:2]
    pixels = np.empty((height // 2, width // 2, 3), np.uint8)
    while True:
        for data in files:
            simplejpeg.decode_jpeg(data, min_height=height // 2, min_width=width // 2, min_factor=2, buffer=pixels)
            yield pixels[None]


PEERS = {"megatron-energon": batches_of_energon, "webdataset": batches_of_webdataset, "SPDL": batches_of_spdl, "libjpeg-turbo": batches_of_jpegs}


def measure(peer, folder, kind, seconds):
    batches = PEERS[peer](folder, kind)
    for _ in range(WARMUP):
        next(batches)
    began, samples, took = time.perf_counter(), 0, 0.0
    while took < seconds:
        samples += len(next(batches))
        took = time.perf_counter() - began
    first = next(batches)
    batches.close()
    return {"samples_per_s": samples / took, "shape": list(first.shape), "mean": float(first.mean()), "type": str(first.dtype)}


def versions():
    from importlib.metadata import version

    return {name: version(package) for name, package in
            {"megatron-energon": "megatron-energon", "webdataset": "webdataset", "SPDL": "spdl", "libjpeg-turbo": "simplejpeg"}.items()}


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        from megatron.energon.cli.main import main

        main(["prepare", sys.argv[2], "--non-interactive", "--no-progress", "--num-workers", "1", "--split-ratio", "1,0,0", "--sample-type",
              "ImageClassificationSample", "--field-map", sys.argv[3]], standalone_mode=False)
        sys.exit()
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr  # what they print is no answer
    torch.set_num_threads(1)
    print(json.dumps(versions()), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(**json.loads(line))), file=answers, flush=True)
