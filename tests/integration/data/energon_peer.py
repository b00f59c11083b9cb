"""What Megatron-Energon itself says of a set; runs in its environment (./dev peers), unmodified.

    energon_peer.py prepare FOLDER SPLIT_RATIO SAMPLE_TYPE FIELD_MAP     `energon prepare --non-interactive`
    energon_peer.py look FOLDER PART…     `energon info`, `energon lint`, and a line of JSON: {part: [[key, sha256 of the picture], …]}
"""

import hashlib
import json
import sys

from megatron.energon import DefaultTaskEncoder, WorkerConfig, get_loader, get_val_dataset
from megatron.energon.cli.main import main


def energon(*words):
    main([str(word) for word in words], standalone_mode=False)


class Undecoded(DefaultTaskEncoder):
    decoder = None


def samples(folder, part):
    dataset = get_val_dataset(folder, split_part=part, worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
                              batch_size=None, task_encoder=Undecoded())
    return sorted((sample.__key__, hashlib.sha256(sample.image).hexdigest()) for sample in get_loader(dataset))


if sys.argv[1] == "prepare":
    folder, ratio, kind, fields = sys.argv[2:]
    energon("prepare", folder, "--non-interactive", "--no-progress", "--num-workers", 2, "--split-ratio", ratio,
            "--sample-type", kind, "--field-map", fields)
else:
    folder, parts = sys.argv[2], sys.argv[3:]
    energon("info", folder)
    energon("lint", folder, "--parallel", 0)
    print(json.dumps({part: samples(folder, part) for part in parts}))
