"""What `--trace` shows: which kernel computed each op, whatever stands around it, and a Chrome trace."""

import json
import pathlib
import sys
import tomllib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import sizes  # noqa: E402

LAYOUTS = {
    "one": (1, {}),
    "ulysses": (2, {"parallel.context": 2, "parallel.context_plugin": "ulysses"}),
    "ring": (2, {"parallel.context": 2, "parallel.context_plugin": "ring"}),
}
PINS = {"one": ["exact_plain"], "ulysses": [None, "exact_plain"], "ring": [None]}  # in pieces there may be the reference alone
# Each block of keys goes through these, forward; the ring merges what it gets.
PIECES = {"attention_partial", "attention_merge", "attention_finish"}


def kernels_of(path, name, ranks=1, **sets):
    """Of the last step's ops of attention {phase: {op: {variant: calls}}}, the variants that the run chose, the output."""
    given = {key.replace("__", "."): value for key, value in sets.items()}
    done = t.train(path, name, "--trace", "kernels", *(("--local-ranks", ranks) if ranks > 1 else ()), *t.sets(given))
    last = json.loads((t.work / name / "metrics.jsonl").read_text().splitlines()[-1])
    record = tomllib.loads((t.work / name / "run.toml").read_text())["record"]["kernels"]
    chosen = {variant for call, variants in record.items() if call.startswith("attention") for variant in variants.split(", ")}
    found = {phase: {op: by for op, by in ops.items() if op.startswith("attention")} for phase, ops in last["kernels"].items()}
    return {phase: ops for phase, ops in found.items() if ops}, chosen, done.all


def variants_in(found):
    return {variant for ops in found.values() for by in ops.values() for variant in by}


def test_attention_of_rings_and_ulysses_is_computed_by_the_kernel_that_is_chosen():
    path = t.write_recipe("tiny.toml", t.recipe(run=dict(steps=1)))
    for name, (ranks, layout) in LAYOUTS.items():
        for pin in PINS[name]:
            found, chosen, said = kernels_of(path, f"{name}-{pin}", ranks, **layout, **({"kernels.attention": pin} if pin else {}))
            t.equal(variants_in(found), {pin} if pin else chosen, f"{name}: variants")
            t.equal(len(variants_in(found)), 1, f"{name}: number of variants")
            (variant,) = variants_in(found)
            if name == "ring":
                t.equal(set(found["forward"]), PIECES, "a ring's ops")
                t.equal(found["backward"], {"attention_backward": {variant: 4}}, "a ring's gradients, two blocks of two ranks' keys")
            else:
                expected = {"forward": {"attention": {variant: 2}}, "backward": {"attention backward": {variant: 2}}}
                t.equal(found, expected, f"{name}: calls of two blocks")
                words = f"attention {variant} {2 * ranks}".split()
                t.check(any(line.split()[-3:] == words for line in said.splitlines()), f"no {words} of all ranks in:\n{said}")


def test_attention_of_packs_is_computed_by_the_kernel_that_is_chosen():
    path, sets = sizes.mixed("dit_text")
    # For bf16 there are kernels, on processors that multiply it.
    packed = sizes.without_validation(sets) | sizes.PACKS | {"run.precision": "bf16", "run.steps": 1}
    found, chosen, _ = kernels_of(path, "packs", **packed)
    t.equal(variants_in(found), chosen, "packs: variants")
    calls = sum(found["forward"]["attention"].values())
    found, _, _ = kernels_of(path, "packs-pinned", **packed, **{"kernels.attention": "reference"})
    t.equal(found, {"forward": {"attention": {"reference": calls}}}, "packs, pinned: calls")
    t.check(calls > 0 and chosen, "no attention")


def test_blocks_that_are_computed_again_count_in_backward():
    path = t.write_recipe("tiny.toml", t.recipe(run=dict(steps=1)))
    found, _, _ = kernels_of(path, "again", parallel__recompute="blocks", kernels__attention="exact_plain")
    t.equal(found, {"forward": {"attention": {"exact_plain": 2}},
                    "backward": {"attention": {"exact_plain": 2}, "attention backward": {"exact_plain": 2}}}, "calls")


def test_a_chrome_trace_is_of_the_last_step_and_of_all_ranks():
    path = t.write_recipe("tiny.toml", t.recipe(run=dict(steps=2)))
    t.train(path, "traced", "--trace", "step.json", "--local-ranks", 2)
    events = json.loads((t.work / "step.json").read_text())["traceEvents"]
    t.equal([e["args"]["name"] for e in events if e["ph"] == "M"], ["rank 0", "rank 1"], "processes")
    for rank in 0, 1:
        mine = [e for e in events if e["pid"] == rank and e["ph"] == "X"]
        (update,) = [e for e in mine if e["name"] == "update"]
        forwards = [e for e in mine if e["name"] == "forward"]
        ops = [e for e in mine if e["name"].startswith("ditto::attention/")]
        t.equal(len(ops), 2, "ops of two blocks, in one step")
        for op in ops:
            inside = [f for f in forwards if f["ts"] <= op["ts"] and op["ts"] + op["dur"] <= f["ts"] + f["dur"] and f["tid"] == op["tid"]]
            t.equal(len(inside), 1, "phases around an op")
            t.check(op["ts"] < update["ts"], "attention after the update")
        t.check(any(e["name"].startswith("shared memory: ") for e in mine), "no calls on the other rank")


def test_calls_of_gloo_are_seen_from_beginning_to_end():
    path = t.write_recipe("tiny.toml", t.recipe(run=dict(steps=1)))
    t.train(path, "gloo", "--trace", "gloo.json", "--local-ranks", 2, env=t.environment | {"GLOO_SOCKET_IFNAME": "lo"})
    events = json.loads((t.work / "gloo.json").read_text())["traceEvents"]
    for rank in 0, 1:
        sums = [e["ph"] for e in events if e["pid"] == rank and e["name"] == "gloo:all_reduce"]
        t.check(sums and sums.count("b") == sums.count("e"), f"collectives: {sums}")


def test_what_cannot_be_traced_is_refused():
    path = t.write_recipe("tiny.toml", t.recipe(run=dict(steps=1)))
    t.refused(2, ["--trace", "everything", "comm, kernels"], "train", path, "--trace", "everything")
    t.refused(2, ["--trace", "nowhere"], "train", path, "--trace", t.work / "nowhere/step.json")
    t.refused(2, ["--trace", "kernels", "ditto train --trace"], "bench", "step", path, "--trace", "kernels")


if __name__ == "__main__":
    t.main(globals())
