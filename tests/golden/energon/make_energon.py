"""Makes tests/golden/energon/set: 14 samples in three shards, prepared by Megatron-Energon (./dev peers).

    .deps/peers_energon/bin/python tests/golden/energon/make_energon.py

Some pictures are .png and some .jpg, two captions stand in .txt only, one sample and one shard are excluded, and a folder that
begins and ends with "__" is no sample.
"""

import io
import json
import pathlib
import shutil
import tarfile

import yaml
from megatron.energon.cli.main import main
from PIL import Image

here = pathlib.Path(__file__).parent / "set"


def picture(number, kind):
    image = Image.new("RGB", (6, 4), (10 * number, 200 - 10 * number, number))
    out = io.BytesIO()
    image.save(out, "PNG" if kind == "png" else "JPEG", quality=90)
    return out.getvalue()


def add(tar, name, data):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


shutil.rmtree(here, ignore_errors=True)
number = 0
for shard, samples in enumerate((5, 3, 6)):
    path = here / f"part/shard_{shard:03}.tar"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        add(tar, "__notes__/about.txt", b"no sample")
        for _ in range(samples):
            kind = "jpg" if number % 3 == 2 else "png"
            key = f"{'long_' * 25 if number == 6 else ''}folder.{shard}/{number:04}"
            add(tar, f"{key}.{kind}", picture(number, kind))
            add(tar, f"{key}.json", json.dumps({"label": number % 4, **({} if number in (3, 9) else
                                                {"captions": [f"of number {number}", "another"]})}).encode())
            add(tar, f"{key}.txt", f"text {number}".encode())
            number += 1

main(["prepare", str(here), "--non-interactive", "--no-progress", "--num-workers", "1", "--split-ratio", "2,1,0", "--sample-type",
      "CaptioningSample", "--field-map", json.dumps({"image": "png,jpg", "caption": "json[captions][0],txt"})],
     standalone_mode=False)
notes = here / ".nv-meta/split.yaml"
split = yaml.safe_load(notes.read_text())
split["split_parts"] = {"train": ["part/shard_0{00,0{2..2}}.tar"], "val": ["part/shard_001.tar"], "test": []}
split["exclude"] = ["part/shard_00{1,9}.tar/folder.1/0007", "part/shard_007.tar"]
notes.write_text(yaml.dump(split))
