"""Makes packing.json: 1,000 random sets of lengths, and how NeMo packs them.

    python3 tests/golden/make_packing.py nemo_toolkit-2.2.1-py3-none-any.whl > tests/golden/packing.json

The wheel is `pip download --no-deps nemo_toolkit==2.2.1`. Of it one module is loaded, alone: what it imports for other
things (numpy, tqdm, NeMo's log) is replaced by empty names.
"""

import json
import random
import sys
import types
import zipfile

MODULE = "nemo/utils/sequence_packing_utils.py"


def first_fit_decreasing(wheel):
    for name in ("numpy", "tqdm", "nemo", "nemo.utils"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["numpy"].array = None
    sys.modules["tqdm"].tqdm = None
    sys.modules["nemo.utils"].logging = None
    module = types.ModuleType("packing")
    exec(compile(zipfile.ZipFile(wheel).read(MODULE), MODULE, "exec"), module.__dict__)
    return module.first_fit_decreasing


def main():
    pack, draw, sets = first_fit_decreasing(sys.argv[1]), random.Random(13), []
    for _ in range(1000):
        room = draw.choice([16, 64, 100, 256, 1024, 8192])
        # Of few sizes, as pictures and videos are, and of any; some fill a pack alone.
        few = draw.random() < 0.5
        sizes = [draw.randint(1, room) for _ in range(draw.randint(1, 6))] if few else range(1, room + 1)
        lengths = [draw.choice(sizes) for _ in range(draw.randint(1, 48))]
        sets.append({"room": room, "lengths": lengths, "packs": pack(lengths, room)})
    rows = ",\n".join(json.dumps(one, separators=(",", ":")) for one in sets)
    print('{"made_by": "nemo_toolkit 2.2.1, nemo.utils.sequence_packing_utils.first_fit_decreasing", "sets": [\n' + rows + "\n]}")


if __name__ == "__main__":
    main()
