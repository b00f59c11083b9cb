"""Kernels for GPUs compile for each architecture, and take no more registers than they did.

Claim (machine): The kernels for GPUs compile for sm_80, sm_90 and sm_100 without a warning or a spilled register, and
take no more registers or shared memory than tests/gpu/ptxas.txt says. Also: sm_80 and sm_100 in `gpu_registers.py --slow`
"""

import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402


def test_kernels_take_what_the_table_says():
    only = [] if t.slow else ["90"]
    done = subprocess.run([sys.executable, str(t.source / "tests/gpu/ptxas"), *only], capture_output=True, text=True)
    if done.returncode == 77:
        raise t.NotRun(done.stdout.removeprefix("not run: ").strip())
    t.check(done.returncode == 0, done.stdout, done.stderr)


if __name__ == "__main__":
    t.main(globals())
