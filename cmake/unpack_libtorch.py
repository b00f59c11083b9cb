"""unpack_libtorch.py WHEELS FOLDER: headers, libraries and licences of the wheels in WHEELS, to FOLDER."""

import fnmatch
import pathlib
import sys
import zipfile

WANTED = ["torch/include/*", "torch/lib/*", "nvidia/*/lib/*.so.*", "*.dist-info/licenses/*"]

wheels, folder = map(pathlib.Path, sys.argv[1:])
for wheel in sorted(wheels.glob("*.whl")):
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if any(fnmatch.fnmatch(n, w) for w in WANTED)]
        archive.extractall(folder, names)
