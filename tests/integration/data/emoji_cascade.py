"""data/emoji/judge_cascade.py: what an enlarging stage is asked to sample, and its figures of samples that are known: the pictures themselves, what
bicubic filters make, and those of another small picture. With made-up pictures and names.

Claim (machine): What `./dev demo imagen` judges: the bar is the better of two bicubic filters, a missed floor is named with its figure and ends with
code 1, and samples that are not those asked for are refused.
"""

import json
import random
import subprocess
import sys
import pathlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import emoji  # noqa: E402

sys.path.insert(0, str(t.source / "data/emoji"))
import judge_cascade as cascade  # noqa: E402

SIDE, COUNT = emoji.SIDE, 2


def run(*words, code=0):
    into, _ = emoji.made()
    done = subprocess.run([sys.executable, t.source / "data/emoji/judge_cascade.py", "--data", into / str(SIDE), "--count", str(COUNT),
                           *map(str, words)], capture_output=True, text=True)
    t.equal(done.returncode, code, f"exit code: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def pictures():
    into, _ = emoji.made()
    return dict(cascade.held_out(into / str(SIDE))[0])


def prepared():
    folder = t.work / "prepared"
    if not folder.exists():
        run("prepare", folder)
    return folder


def samples(name, rows):
    """[(prompt, pixels)] as `ditto sample` writes them; their sides are those of the pixels."""
    folder = t.work / name
    folder.mkdir()
    with open(folder / "samples.jsonl", "w") as lines:
        for i, (prompt, pixels) in enumerate(rows):
            side = round((len(pixels) / 3) ** 0.5)
            (folder / f"{i:06}.png").write_bytes(emoji.of_rgb(side, [round((one + 1) * 127.5) for one in pixels]))
            lines.write(json.dumps({"file": f"{i:06}.png", "prompt": prompt, "seed": i}) + "\n")
    return folder


def small(pixels):
    return cascade.judge.resized(pixels, SIDE, SIDE // 2)


def others():
    """{prompt: the picture of the one after it}"""
    names = list(pictures())
    return {name: pictures()[after] for name, after in zip(names, names[1:] + names[:1])}


def test_what_is_sampled_are_held_out_prompts_and_their_small_pictures():
    names = list(pictures())
    own = (prepared() / "own.txt").read_text().splitlines()
    t.equal(own, [name for name in names for _ in range(COUNT)], "prompts")
    t.equal((prepared() / "other.txt").read_text().splitlines(), names, "prompts of other small pictures")
    for which, expected in (("own", [pictures()[name] for name in own]), ("other", list(others().values()))):
        dtype, shape, _ = t.read_tensors(prepared() / f"{which}.safetensors")["low"]
        t.equal((dtype, shape), ("F32", [len(expected), 3, SIDE // 2, SIDE // 2]), f"low of {which}")
        numbers = list(t.numbers(t.read_tensors(prepared() / f"{which}.safetensors")["low"]))
        one = [small(pixels)[channel::3] for pixels in expected for channel in range(3)]
        t.check(all(abs(a - b) < 1e-6 for a, b in zip(numbers, [number for row in one for number in row])), f"numbers of {which}")


def test_bicubic_enlargement_is_that_of_interpolate():
    """What torch.nn.functional.interpolate (2.11.0) makes of a ramp of four: its third row, and what is bent at the ends."""
    row = [number for x in (-0.75, -0.5, 0.25, 1.0) for number in 3 * [x]]
    made = cascade.doubled(4 * row, 4)[2 * 8 * 3:3 * 8 * 3:3]
    expected = [-0.7763671875, -0.7197265625, -0.6357421875, -0.330078125, 0.009765625, 0.4990234375, 0.8564453125, 1.0]
    t.check(all(abs(a - b) < 1e-6 for a, b in zip(made, expected)), made)


def test_true_pictures_hold_all_floors():
    draw = random.Random(2)
    near = {name: [min(1.0, max(-1.0, one + draw.choice((-0.02, 0.02)))) for one in pixels] for name, pixels in pictures().items()}
    own = samples("true", [(name, pixels) for name, pixels in near.items() for _ in range(COUNT)])
    said = run("judge", own, samples("others", list(others().items())), "--json", t.work / "true.json")
    t.equal(said.count("holds "), 3, said)
    result = json.loads((t.work / "true.json").read_text())
    t.check(result["gain"] > 3 and result["gains"] == len(near) and result["small"]["above"] == 0 and result["obeys"]["mean"] > 6, result)
    t.check(result["bicubic"] != result["softer"], "two filters")


def test_each_floor_is_missed_by_what_misses_it():
    enlarged = [(name, cascade.doubled(small(pixels), SIDE // 2)) for name, pixels in pictures().items() for _ in range(COUNT)]
    obeying, wrong = list(others().items()), list(pictures().items())
    said = run("judge", samples("bicubic", enlarged), samples("obeying", obeying), code=1)
    t.check("MISSED  gain" in said and "MISSED  obeys" not in said and "floors are missed" in said, said)
    lighter = [(name, [min(1.0, one + 0.3) for one in pixels]) for name, pixels in pictures().items() for _ in range(COUNT)]
    said = run("judge", samples("lighter", lighter), samples("wrong", wrong), code=1)
    t.check("MISSED  small" in said and "MISSED  obeys" in said, said)


def test_a_cascades_stages_are_held_against_one_another():
    stages = [samples("stage-1", [(name, small(pixels)) for name, pixels in pictures().items()]),
              samples("stage-2", list(pictures().items()))]
    found = list(cascade.of_stages(stages))
    t.equal([(one["from"], one["to"]) for one in found], [(SIDE // 2, SIDE)], "sides")
    t.check(found[0]["largest"] < 0.005, found)  # PNGs are rounded
    t.check("its prompts are not" in run("judge", samples("a", [(name, pixels) for name, pixels in pictures().items() for _ in range(COUNT)]),
                                        samples("b", list(others().items())), "--stages", stages[0], samples("c", [("a cow", [0.0] * 192)]), code=1), "prompts")


def test_samples_that_were_not_asked_for_are_refused():
    own = samples("few", list(pictures().items()))
    t.check("expected 2 and 1" in run("judge", own, own, code=1), "too few")
    t.check("has a side of 4 pixels" in run("judge", samples("small", [(name, small(one)) for name, one in pictures().items()]), own, code=1), "sides")
    t.check("samples.jsonl" in run("judge", t.work / "nowhere", own, code=1), "nothing")


if __name__ == "__main__":
    t.main(globals())
