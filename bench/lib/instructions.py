"""Instructions that a processor announces and refuses."""
import os
import signal
import subprocess
import sys


def without_refused_instructions():
    """Where bf16 products end the process (virtual machines that announce AMX and refuse it), both sides go without."""
    if "ONEDNN_MAX_CPU_ISA" in os.environ:
        return
    product = "import torch; a = torch.ones(64, 64).bfloat16(); a @ a"
    if subprocess.run([sys.executable, "-c", product], stderr=subprocess.DEVNULL).returncode == -signal.SIGILL:
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"
