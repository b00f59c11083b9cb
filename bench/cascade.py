#!/usr/bin/env python3
"""Sampling eight emoji through the three stages of configs/emoji_cascade by one command, beside the same by hand: a `ditto sample` a stage, each
given the pictures of the one before (--save-latents, and --condition low=FILE).

Every round times both, and every other one begins with the other, so that what disturbs the machine disturbs both. A time is of whole processes,
from their start to their end; what turns one stage's file into the next one's is not in it. How often texts were encoded is what
`ditto sample --json` counts. Stages are trained for one step each, or are those of a run (--run).

Bounds: in the median of rounds one command takes at most 1.05 times what three take; the cascade encodes each text once.

Usage: ./dev bench cascade [--rounds 7] [--run runs/emoji_cascade] [--out FOLDER]
"""
import argparse
import json
import os
import pathlib
import statistics
import struct
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


def renamed(latents, low):
    """The pictures of a stage under the name by which the next one takes them."""
    data = latents.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    made = {"low": header["latents"]}
    begin, end = header["latents"]["data_offsets"]
    made["low"]["data_offsets"] = [0, end - begin]
    head = json.dumps(made).encode()
    head += b" " * (-len(head) % 8)
    low.write_bytes(struct.pack("<Q", len(head)) + head + data[8 + length + begin:8 + length + end])


def by_hand(cascade, folder, prompts, args):
    total, low = 0.0, None
    for stage, steps, scale in zip(STAGES, STEPS, GUIDANCE):
        latents = folder / f"{stage}.safetensors"
        given = ["--condition", f"low={low}"] if low else []
        _, seconds = run("sample", cascade / stage, "--prompts", prompts, "--steps", steps, "--guidance", scale, "--batch", len(PROMPTS), *given,
                         "--save-latents", latents, "--out", folder / f"hand-{stage}", "--overwrite", "--set", f"run.threads={args.threads}")
        total += seconds
        low = folder / f"low-{stage}.safetensors"
        renamed(latents, low)
        latents.unlink()
    return total


def by_cascade(cascade, folder, prompts, args):
    """Its seconds, and how many texts each stage's start has encoded."""
    done, seconds = run("sample", cascade, "--prompts", prompts, "--steps", ",".join(map(str, STEPS)), "--guidance", ",".join(map(str, GUIDANCE)),
                        "--batch", len(PROMPTS), "--all", "--out", folder / "cascade", "--overwrite", "--set", f"run.threads={args.threads}",
                        "--json")
    return seconds, json.loads(done.stdout)["texts_encoded"]


def page(args, load, hand, cascade, encoded):
    ratios = [one / other for one, other in zip(cascade, hand)]
    return [f"# A cascade in one command, {processor()}", "", "Written by bench/cascade.py (`./dev bench cascade`), which says what is timed.", "",
            f"- processor: {processor()} ({details()}); {args.threads} threads; load average before the run: {load:.2f}",
            f"- {args.rounds} rounds of {len(PROMPTS)} prompts, {' + '.join(map(str, STEPS))} steps; {today()}", "",
            "| | s |", "|---|---:|", f"| three commands | {spread(hand, '.2f')} |", f"| **one command** | {spread(cascade, '.2f')} |", "",
            f"- one command's time over three commands' (bound {BOUND}): {spread(ratios, '.3f')}",
            f"- texts that one command encoded, of {len(PROMPTS)} prompts and the empty text for three stages (bound "
            f"{len(PROMPTS) + 1}): {encoded}"], statistics.median(ratios)


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
    if len(encoded) != 1:
        sys.exit(f"cascade.py: rounds encoded {sorted(encoded)} texts")
    lines, ratio = page(args, load, hand, cascade, encoded.pop())
    write(lines, args.out, "cascade")
    if ratio > BOUND:
        sys.exit(f"cascade.py: one command takes {ratio:.3f} times what three take; the bound is {BOUND}")


if __name__ == "__main__":
    main()
