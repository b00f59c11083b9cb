"""Records what Slurm makes of lists of machines, in hostnames.json beside this file.

Needs `scontrol` (Debian's slurm-client); no daemon runs. A list that scontrol refuses is an error here: Slurm 22.05 knows no
text behind the last bracket.
"""

import json
import pathlib
import subprocess
import tempfile

LISTS = [
    "a", "b2,a1,b1", "gpu[07-08,11],x1", "n[8-11]", "n[08-11]", "n[098-101]", "n[1-010]", "n[001,01,1]", "n[2,1]", "n[1,1]",
    "[1-3]", "n1[2-3]", "a,,b", ",a", "a,", "n[0-1][0-1]", "n[1-2]x[3-4],q", "rack[1-2]node[1-4]", "n[5]-[6-7]",
    "a[1-2]-b[01-02]-c[3,5]", "a[1,3-4]b[7-8]c[5-6]", "a[1-2]b[1-3]c[1-2]d[1-2]", "a[1-2]b[1-2]c[1-2]d[1-2]e[1-2]",
]

with tempfile.TemporaryDirectory() as folder:
    conf = pathlib.Path(folder) / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nAuthType=auth/none\nNodeName=localhost\n"
                    "PartitionName=p Nodes=ALL\n")
    ask = lambda *words: subprocess.run(["scontrol", *words], env={"SLURM_CONF": str(conf), "PATH": "/usr/bin"}, check=True,
                                        capture_output=True, text=True)
    names = {}
    for text in LISTS:
        done = ask("show", "hostnames", text)
        if done.stderr or "Invalid" in done.stdout:
            raise SystemExit(f"{text}: {done.stdout}{done.stderr}")
        names[text] = " ".join(done.stdout.split())
    record = {"by": ask("--version").stdout.strip(), "names": names}
    pathlib.Path(__file__).with_name("hostnames.json").write_text(json.dumps(record, indent=1) + "\n")
