#!/usr/bin/env python3
"""Sampling eight emoji through the three stages of configs/emoji_cascade by one command, beside the same by hand: a `ditto sample` a stage, each
given the pictures of the one before (--pass and --condition).

Every round times both, and every other one begins with the other, so that what disturbs the machine disturbs both. A time is of whole processes,
from their start to their end. How often texts were encoded is what `ditto sample` counts. Stages are trained for one step each, or are those of a run (--run).

Bounds: in the median of rounds one command takes at most 1.05 times what three take; the cascade encodes each text once.

Usage: ./dev bench cascade [--rounds 7] [--run runs/emoji_cascade] [--out FOLDER]
"""
import argparse
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "lib"))
from report import details, load_now, processor, spread, today, usable_processors, write  # noqa: E402
DITTO = os.environ.get("DITTO", str(ROOT / "build/release/bin/ditto"))
STAGES, STEPS, GUIDANCE = ["base", "sr32", "sr64"], [20, 10, 10], [3, 1, 1]
PROMPTS = ["red apple", "grinning face", "thumbs up: dark skin tone", "flag: Japan", "woman mage: light skin tone", "rocket", "two hearts", "cow"]
BOUND = 1.05


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="each times both (default 7)")
    parser.add_argument("--run", type=pathlib.Path, help="a cascade's folder (default: one that is trained for a step)")
    parser.add_argument("--threads", type=int, default=usable_processors(), help="default: all that may be used")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results", help="folder of the results")
    return parser.parse_args()


def run(*words):
    """What it prints, and its seconds."""
    began = time.perf_counter()
    done = subprocess.run([DITTO, *map(str, words)], capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode != 0:
        sys.exit(f"cascade.py: ditto {' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done, seconds


def trained(folder):
    """Weights as they are drawn are as fast as others."""
    if not (ROOT / ".deps/emoji/64").is_dir():
        sys.exit("cascade.py: .deps/emoji/64 is not there; make it with `python3 data/emoji/make.py --side 64`")
    sets = [word for stage in STAGES for key in ("run.steps=1", "run.batch=2", "validate.every=0") for word in ("--set", f"{stage}.{key}")]
    run("train", ROOT / "configs/emoji_cascade/cascade.toml", "--set", f'cascade.output="{folder / "run"}"', *sets)
    return folder / "run"


def by_hand(cascade, folder, prompts, args):
    total, low = 0.0, None
    for made in [*folder.glob("hand-*"), *folder.glob("*.safetensors")]:  # what is whole would not be made again
        shutil.rmtree(made) if made.is_dir() else made.unlink()
    for series, (stage, steps, scale) in enumerate(zip(STAGES, STEPS, GUIDANCE)):
        given = ["--condition", low] if low else []
        low = folder / f"{stage}.safetensors"
        _, seconds = run("sample", cascade / stage, "--prompts", prompts, "--steps", steps, "--guidance", scale, "--series", series, *given,
                         "--pass", f"low={low}", "--batch", len(PROMPTS), "--out", folder / f"hand-{stage}",
                         "--set", f"run.threads={args.threads}")
        total += seconds
    return total


def by_cascade(cascade, folder, prompts, args):
    """Its seconds, and how many texts its stages have encoded."""
    shutil.rmtree(folder / "cascade", ignore_errors=True)  # with the texts that are kept there
    sets = [word for stage in STAGES for word in ("--set", f"{stage}.run.threads={args.threads}")]
    done, seconds = run("sample", cascade, "--prompts", prompts, "--steps", ",".join(map(str, STEPS)), "--guidance", ",".join(map(str, GUIDANCE)),
                        "--batch", len(PROMPTS), "--all", "--out", folder / "cascade", *sets)
    counts = re.findall(r"^texts: (\d+) encoded, (\d+) found encoded$", done.stdout + done.stderr, re.M)
    if [int(made) + int(found) for made, found in counts] != [len(PROMPTS)] * len(STAGES):
        sys.exit(f"cascade.py: of {len(PROMPTS)} prompts and {len(STAGES)} stages the cascade says it encoded and found {counts}")
    return seconds, sum(int(made) for made, _ in counts)


def page(args, load, hand, cascade, encoded):
    ratios = [one / other for one, other in zip(cascade, hand)]
    return [f"# A cascade in one command, {processor()}", "", "Written by bench/cascade.py (`./dev bench cascade`), which says what is timed.", "",
            f"- processor: {processor()} ({details()}); {args.threads} threads; load average before the run: {load:.2f}",
            f"- {args.rounds} rounds of {len(PROMPTS)} prompts, {' + '.join(map(str, STEPS))} steps; {today()}", "",
            "| | s |", "|---|---:|", f"| three commands | {spread(hand, '.2f')} |", f"| **one command** | {spread(cascade, '.2f')} |", "",
            f"- one command's time over three commands' (bound {BOUND}): {spread(ratios, '.3f')}",
            f"- texts that one command encoded, of {len(PROMPTS)} prompts for {len(STAGES)} stages (bound {len(PROMPTS)}): {encoded}"], statistics.median(ratios)


def main():
    args = arguments()
    load, hand, cascade, encoded = load_now(), [], [], set()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        prompts = folder / "prompts.txt"
        prompts.write_text("".join(prompt + "\n" for prompt in PROMPTS))
        run_folder = args.run or trained(folder)
        for i in range(args.rounds):
            for which in ("hand", "cascade") if i % 2 == 0 else ("cascade", "hand"):
                if which == "hand":
                    hand.append(by_hand(run_folder, folder, prompts, args))
                else:
                    seconds, count = by_cascade(run_folder, folder, prompts, args)
                    cascade.append(seconds)
                    encoded.add(count)
            print(f"round {i + 1}: {hand[-1]:.2f} s by hand, {cascade[-1]:.2f} s by one command", file=sys.stderr, flush=True)
    lines, ratio = page(args, load, hand, cascade, max(encoded))
    write(lines, args.out, "cascade")
    if max(encoded) > len(PROMPTS):
        sys.exit(f"cascade.py: {max(encoded)} texts were encoded, of {len(PROMPTS)} prompts")
    if ratio > BOUND:
        sys.exit(f"cascade.py: one command takes {ratio:.3f} times what three take; the bound is {BOUND}")


if __name__ == "__main__":
    main()
