#!/usr/bin/env python3
"""What [tread] and the objective repa do to learning: a plain recipe, the same with a half of each sample's tokens led around the
blocks but the first and the last, and the same with a block's tokens drawn to another run's features, over several seeds.

Sets: the digits of the repository (8 x 8 pixels, 1,621 to learn from), and, where --pictures names it, digits.png of OpenCV's
samples (Debian's package opencv-doc; 20 x 20 pixels, 4,500 to learn from). Measured every --every steps, with the average of the
weights: the loss on held-out pictures at fixed times and noise, and the share of 100 guided samples that a support-vector
classifier, which has learned from the same pictures, names as asked. repa's features are those of a plain run of another seed, as
long as the others; its training is not counted.

Runs that are there already in --out are not made again, so that a study that was cut off goes on.

Usage: ./dev bench learning_faster [--pictures digits.png] [--seeds 5] [--steps 400] [--jobs 1] [--out FOLDER]
       [--write docs/generated/NAME] (the environment of ./dev peers; --write makes NAME.svg and prints the table)
"""
import argparse
import concurrent.futures
import io
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "lib"))
DITTO = os.environ.get("DITTO", str(ROOT / "build/release/bin/ditto"))
RECIPE = ROOT / "configs/digits.toml"
COMMON = {"run.threads": 1, "run.batch": 32, "model.width": 64, "lr_schedule.lr": 2e-3, "validate.samples": 176, "validate.grid_every": 0, "log.tensorboard": False, "log.progress": "none",
          "checkpoint.keep": 1000}
SAMPLES, SAMPLER_STEPS, GUIDANCE, FEATURES_SEED = 100, 20, 2, 1000
KINDS = {
    "plain": {},
    "tread": {"tread.ratio": 0.5, "tread.start": 1, "tread.end": -1},
    "repa": {"objective.plugin": "repa", "objective.block": 2, "objective.network_block": 3, "objective.hidden": 128},
}
COLOURS = {"plain": "#111111", "tread": "#d62728", "repa": "#1f77b4"}


def words(options):
    return [word for key, value in options.items() for word in ("--set", f"{key}={json.dumps(value)}")]


def ditto(*arguments):
    done = subprocess.run([DITTO, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, done.args))}\n{done.stdout}{done.stderr}")
    return done.stdout


def sets_of(pictures, out):
    """Name -> the options of its data."""
    sets = {"digits, 8 x 8": {"data.shards": [f"{ROOT}/data/digits/train-*.tar"],
                              "data.validation_shards": [f"{ROOT}/data/digits/validation-*.tar"]}}
    if pictures:
        shards = out / "shards"
        if not shards.exists():
            from PIL import Image
            sheet = Image.open(pictures)  # 50 rows of 100 pictures: five rows of each digit
            for row in range(50):
                folder = out / "pictures" / str(row // 5)
                folder.mkdir(parents=True, exist_ok=True)
                for column in range(100):
                    box = (20 * column, 20 * row, 20 * column + 20, 20 * row + 20)
                    sheet.crop(box).save(folder / f"{row:02}{column:03}.png")
            ditto("data", "prepare", out / "pictures", "--out", shards, "--validation", "0.1")
        sets["digits, 20 x 20"] = {"data.shards": [f"{shards}/train-*.tar"], "data.validation_shards": [f"{shards}/validation-*.tar"],
                                   "data.size": [20, 20], "model.patch": 4}
    return sets


def pictures_in(patterns):
    """Of shards, as rows of numbers in 0 … 1, and their classes."""
    import numpy as np
    from PIL import Image
    rows, classes = {}, {}
    for pattern in patterns:
        for path in sorted(pathlib.Path(pattern).parent.glob(pathlib.Path(pattern).name)):
            with tarfile.open(path) as tar:
                for member in tar:
                    key, _, kind = member.name.rpartition(".")
                    data = tar.extractfile(member).read()
                    if kind == "png":
                        rows[key] = np.asarray(Image.open(io.BytesIO(data)).convert("L")).reshape(-1) / 255
                    elif kind == "cls":
                        classes[key] = int(data)
    return np.stack([rows[key] for key in sorted(rows)]), np.array([classes[key] for key in sorted(rows)])


def classifier_of(data):
    """It, and the share of held-out pictures that it names right."""
    from sklearn.svm import SVC
    machine = SVC(gamma="scale", C=10).fit(*pictures_in(data["data.shards"]))
    return machine, machine.score(*pictures_in(data["data.validation_shards"]))


def train(folder, data, kind, seed, steps, every, features):
    options = COMMON | data | KINDS[kind] | {"run.seed": seed, "run.steps": steps, "run.output": str(folder), "validate.every": every,
                                             "checkpoint.every": every}
    if kind == "repa":
        options["network.features.weights"] = str(features)
    ditto("train", RECIPE, *words(options))
    for step in range(every, steps + 1, every):
        ditto("sample", folder / f"checkpoints/step_{step:08}", "--out", folder / f"named/{step}", "--classes", "0-9", "--seeds",
              f"0-{SAMPLES - 1}", "--guidance", GUIDANCE, "--steps", SAMPLER_STEPS, "--progress", "none", "--overwrite")
    (folder / "done").touch()


def measure(folder, machine, steps, every):
    """Step -> (loss, share of samples that are named as asked)."""
    import numpy as np
    from PIL import Image
    losses = {}
    for line in (folder / "validation.jsonl").read_text().splitlines():
        entry = json.loads(line)
        losses[entry["step"]] = entry["losses"]["mse"]
    found = {}
    for step in range(every, steps + 1, every):
        named = folder / f"named/{step}"
        rows = np.stack([np.asarray(Image.open(named / f"{i:06}.png").convert("L")).reshape(-1) / 255 for i in range(SAMPLES)])
        found[step] = (losses[step], float((machine.predict(rows) == np.arange(SAMPLES) % 10).mean()))
    return found


def operations(data, kind, features):
    options = COMMON | data | KINDS[kind] | ({"network.features.weights": str(features)} if kind == "repa" else {})
    return json.loads(ditto("train", RECIPE, "--dry-run", "--json", *words(options)))["flops_per_step"]


# --- plot and table ------------------------------------------------------------------------------------------------------


def panel(axes, title, curves, label):
    """curves: kind -> list of {step: value}, one a seed: each thin, their mean thick."""
    for kind, runs in curves.items():
        steps = sorted(runs[0])
        for run in runs:
            axes.plot(steps, [run[step] for step in steps], color=COLOURS[kind], linewidth=0.6, alpha=0.35)
        axes.plot(steps, [statistics.mean(run[step] for run in runs) for step in steps], color=COLOURS[kind], linewidth=2.2, label=kind)
        axes.set_xticks(steps)
    axes.yaxis.set_major_formatter(lambda value, _: label(value))
    axes.set(title=title, xlabel="steps; thin: a seed, thick: their mean")


def draw(results, target):
    import plot
    figure, axes = plot.panels(len(results), 2)
    for row, (name, kinds) in zip(axes, results.items()):
        for j, (title, label) in enumerate((("held-out loss", lambda v: f"{v:.3f}"), ("named as asked", lambda v: f"{100 * v:.0f} %"))):
            curves = {kind: [{step: both[j] for step, both in run.items()} for run in runs] for kind, runs in kinds.items()}
            panel(row[j], f"{name}: {title}", curves, label)
    plot.save(figure, target)


def spread(values, form):
    """Mean and standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{form(statistics.mean(values))} ± {form(deviation)}"


def table(results, costs, classifiers):
    lines = ["| Set | Recipe | Seeds | Operations a step | Step | Held-out loss | Named as asked |", "|---|---|---|---|---|---|---|"]
    for name, kinds in results.items():
        for kind, runs in kinds.items():
            steps = sorted(runs[0])
            for step in steps:
                lines.append(f"| {name} | {kind} | {len(runs)} | {costs[name][kind] / costs[name]['plain']:.2f} | {step} | "
                             f"{spread([run[step][0] for run in runs], lambda v: f'{v:.4f}')} | "
                             f"{spread([100 * run[step][1] for run in runs], lambda v: f'{v:.1f}')} % |")
    held = "; ".join(f"{name}: {100 * share:.1f} %" for name, share in classifiers.items())
    return "\n".join(lines) + f"\n\nOf held-out real pictures the classifier names right: {held}.\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--pictures", help="OpenCV's digits.png, the larger set")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/learning_faster")
    parser.add_argument("--write", help="the plot's name, without .svg")
    parser.add_argument("--made", action="store_true", help="only of the seeds of which all runs are there")
    a = parser.parse_args()
    a.out = a.out.absolute()
    a.out.mkdir(parents=True, exist_ok=True)
    sets = sets_of(a.pictures, a.out)
    folder = lambda name, kind, seed: a.out / f"{name.replace(', ', '-').replace(' ', '')}-{kind}-{seed}"
    features = {name: folder(name, "plain", FEATURES_SEED) for name in sets}

    def make(name, kind, seed):
        if not (folder(name, kind, seed) / "done").exists():
            train(folder(name, kind, seed), sets[name], kind, seed, a.steps, a.every, features[name])
            print(f"{name}, {kind}, seed {seed}", flush=True)

    if not a.made:
        with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
            list(pool.map(lambda name: make(name, "plain", FEATURES_SEED), sets))
            list(pool.map(lambda one: make(*one), [(name, kind, seed) for seed in range(a.seeds) for name in sets for kind in KINDS]))
    results, costs, classifiers = {}, {}, {}
    for name, data in sets.items():
        machine, classifiers[name] = classifier_of(data)
        seeds = [seed for seed in range(a.seeds) if all((folder(name, kind, seed) / "done").exists() for kind in KINDS)]
        results[name] = {kind: [measure(folder(name, kind, seed), machine, a.steps, a.every) for seed in seeds] for kind in KINDS}
        costs[name] = {kind: operations(data, kind, features[name]) for kind in KINDS}
    (a.out / "results.json").write_text(json.dumps(results, indent=1))
    print(table(results, costs, classifiers))
    if a.write:
        draw(results, pathlib.Path(f"{a.write}.svg"))


if __name__ == "__main__":
    main()
