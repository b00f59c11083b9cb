"""The containers' golden file is what Pillow makes of the pictures today, and so are as many others, of a new seed each time."""
import json
import os
import pathlib
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
import support as t  # noqa: E402

GOLDEN = t.source / "tests/golden/containers/pictures.safetensors"


def made(seed):
    path = t.work / f"{seed}.safetensors"
    done = subprocess.run([sys.executable, str(t.source / "tests/golden/make_containers.py"), "--seed", str(seed), "--out", str(path)],
                          capture_output=True, text=True)
    t.equal(done.returncode, 0, done.stdout + done.stderr)
    return path


def tensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return {name: (entry["shape"], data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]])
            for name, entry in json.loads(data[8:8 + size]).items()}


def test_the_golden_file_is_what_pillow_makes():
    kept, anew = tensors(GOLDEN), tensors(made(0))
    t.equal(sorted(kept), sorted(anew), "names")
    for name in kept:
        t.equal(kept[name], anew[name], name)


def test_pictures_of_other_seeds_are_pillows():
    draw = t.seed_of("containers")
    for _ in range(2):
        path = made(draw.randrange(1 << 32))
        done = subprocess.run([str(t.build / "tests/ditto_golden_tests"), "--source-file=*/containers_test.cpp"],
                              env=os.environ | {"DITTO_CONTAINERS": str(path)}, capture_output=True, text=True)
        t.check(done.returncode == 0 and "2 passed" in done.stdout, done.stdout[-4000:] + done.stderr)


t.main(globals())
