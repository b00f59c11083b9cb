"""tests/gpu/kit, unpacked elsewhere beside pip's PyTorch: it trains on the CPU, and knows that this machine has no GPU.

Claim (machine): A build packed for a machine with a GPU (tests/gpu/kit, at most 48 MiB) trains beside another folder's PyTorch, with no
library of this system but glibc's and GCC's.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

SYSTEMS = re.compile(r"(ld-linux|lib(c|m|dl|rt|pthread|util|stdc\+\+|gcc_s)\.so)")  # libraries that any machine has


def ran(*words, code=0):
    done = subprocess.run([str(word) for word in words], text=True, capture_output=True, cwd=t.work, env=own, timeout=t.patient(900))
    t.equal(done.returncode, code, f"exit code of {words}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


# Nothing that points to this build.
own = {name: value for name, value in t.environment.items() if not name.startswith("DITTO")}


def test_a_kit_serves_elsewhere():
    packed = t.work / "kit.tar.xz"
    print(ran(sys.executable, t.source / "tests/gpu/kit", packed, "--build", t.build).strip(), flush=True)
    t.check(packed.stat().st_size <= 48 << 20, f"{packed.stat().st_size} bytes")
    ran("tar", "-C", t.work, "-xf", packed)
    kit = t.work / "ditto-kit"
    ran(sys.executable, kit / "tests/gpu/run", "--mock", "--out", t.work / "out", "card", "ncu")  # makes the link to PyTorch
    parts = json.loads((t.work / "out/gpu.json").read_text())["parts"]
    t.equal([part["result"] for part in parts.values()], ["ok", "not run"], f"results: {parts}")
    t.check((kit / "build/release/lib/torch").resolve() != (t.build / "lib/torch").resolve(), "it has the build's LibTorch")

    ditto = kit / "build/release/bin/ditto"
    sets = t.sets({"run.steps": 2, "run.threads": 1, "run.output": str(t.work / "run")})
    ran(ditto, "train", kit / "configs/digits.toml", *sets)
    t.equal(t.lines_in("run"), 2, "steps")
    if (kit / "build/release/lib/ditto/plugins/transports/libnccl.so").exists():
        text = ran(ditto, "train", kit / "configs/digits.toml", *sets, *t.sets({"run.device": "cuda"}), code=2)
        t.check("this machine has no GPU that CUDA can use" in text or os.path.exists("/dev/nvidia0"), text)

    linked = dict(re.findall(r"^\s+(\S+) => ((?:/usr)?/lib/\S+)", ran("ldd", ditto), re.MULTILINE))
    t.check(not [name for name in linked if not SYSTEMS.match(name)], f"libraries of this system: {linked}")


if __name__ == "__main__":
    t.main(globals())
