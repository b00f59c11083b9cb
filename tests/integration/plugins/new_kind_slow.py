"""A new kind of plugin is named in three places (CONTRIBUTING.md): tests/new_kind/stopper.patch is all of one, with a plugin of it.

It is applied to a view of this tree in which whatever is written goes elsewhere, and there the program and the plugin are built, on
what is built here already. Where the patch no longer applies: mend what its hunks change by hand, and write it anew, by
    git add -N sdk plugins && git diff -U1 sdk plugins core > tests/new_kind/stopper.patch
"""

import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

PATCH = t.source / "tests/new_kind/stopper.patch"

# What is mounted inside of the tree is not part of the view by itself: .deps may be.
VIEW = """
source=$1 build=$2 scratch=$3 patch=$4 results=$5
mkdir "$scratch/deps"
if [ -d "$source/.deps" ]; then mount --bind "$source/.deps" "$scratch/deps"; fi
mount -t overlay overlay -o "lowerdir=$source,upperdir=$scratch/upper,workdir=$scratch/work" "$source" || exit 77
cd "$source"
if [ -d .deps ]; then mount --bind "$scratch/deps" .deps; fi
git apply -C1 "$patch"
cmake --build "$build" --target ditto ditto_stoppers_plateau
"$build/bin/ditto" plugins list --json > "$results/list.json"
"$build/bin/ditto" plugins show stopper/plateau > "$results/shown"
"""


def test_a_new_kind_is_named_in_three_places():
    changed = [line[len("+++ b/"):] for line in PATCH.read_text().splitlines() if line.startswith("+++ b/")]
    places = [file for file in changed if not file.startswith("plugins/")]
    t.check(0 < len(places) <= 3, f"it is named in {places}")


def test_a_new_kind_is_built_and_listed():
    if not t.build.is_relative_to(t.source):
        raise t.NotRun(f"{t.build} is not inside of {t.source}")
    scratch = t.work / "view"
    for folder in (scratch / "upper", scratch / "work"):
        folder.mkdir(parents=True)
    alone = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        raise t.NotRun("this machine lets nobody mount a view of the tree")
    done = subprocess.run([*alone, "bash", "-euc", VIEW, "bash", t.source, t.build, scratch, PATCH, t.work], env=t.environment,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=t.patient(1500))
    if (scratch / "work/work").exists():
        (scratch / "work/work").chmod(0o700)  # to be removed
    if done.returncode == 77:
        raise t.NotRun(f"this machine mounts no view of the tree: {done.stderr}")
    t.equal(done.returncode, 0, f"exit code of the build: {done.stdout[-4000:]}{done.stderr[-4000:]}")
    listed = {(plugin["kind"], plugin["id"]): plugin for plugin in json.loads((t.work / "list.json").read_text())}
    t.check(("stopper", "plateau") in listed and ("model", "dit") in listed, f"listed: {sorted(listed)}")
    t.check("patience" in (t.work / "shown").read_text(), f"its options: {(t.work / 'shown').read_text()}")
    # The program of before says what it does not know, and nothing has changed here.
    built = scratch / "upper" / t.build.relative_to(t.source) / "lib/ditto/plugins/stoppers"
    done = t.run("plugins", "list", "--plugin-path", built)
    t.check("it is of kind 'stopper', which this ditto does not know" in done.all, done.all)
    t.check(not (t.source / "plugins/stoppers").exists(), "the tree was changed")


if __name__ == "__main__":
    t.main(globals())
