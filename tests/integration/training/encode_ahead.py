"""`loader.encode_ahead = 1`: the next step is encoded while one is computed.

Claim (again): A step that was encoded while the one before it was computed has the same losses and weights, bit for bit, on one rank and
where ranks share the encoder, when a run goes on and when it is stopped; what an encoder throws ends the run alike, and one that stands
still is named.
"""

import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import dry_run  # noqa: E402
import encoders as e  # noqa: E402

AHEAD = {"loader.encode_ahead": 1}


def recipe(name, **options):
    """Validated after each step: there encoders run between steps too."""
    path = e.recipe(name, "fp32", options.pop("encoder", None), **options)
    text = path.read_text()
    t.check("every = 3" in text, "the recipe's validation")
    path.write_text(text.replace("every = 3", "every = 1").replace("steps = 3", "steps = 4"))
    return path


def both(path, name, *words, **sets):
    """A run without and one with it, which are the same."""
    for ahead in (0, 1):
        t.train(path, f"{name}-{ahead}", *words, *t.sets(sets | {"loader.encode_ahead": ahead}))
    t.same_metrics(f"{name}-0", f"{name}-1")
    t.same_state(f"{name}-0", f"{name}-1")
    held = [[line["validation_loss"] for line in t.lines_of(t.work / f"{name}-{ahead}" / "validation.jsonl")] for ahead in (0, 1)]
    t.equal(held[0], held[1], f"{name}: losses of validations")
    return t.metrics(f"{name}-1")


def test_the_bits_are_those_of_a_step_that_encodes_its_own():
    path = recipe("alike")
    one = both(path, "one")
    t.equal(both(path, "read-here", **{"loader.threads": 0}), one, "the same where the training thread reads")
    both(path, "threads", **{"run.threads": 2})
    both(path, "uneven", **{"run.batch": 9, "run.micro_batch": 3})
    t.equal(both(path, "audited", "--local-ranks", 2, **{"run.audit": 1.0})[0]["samples"], 8, "samples of a step")
    plain = t.write_recipe("plain.toml", t.recipe(run=dict(name="plain", steps=4), validate=dict(every=1, samples=12)))
    both(plain, "plain", **{"run.numerics": "one"})


def test_the_bits_are_the_same_where_ranks_share_the_encoder():
    path = recipe("shared")
    for layout, (ranks, sets) in e.LAYOUTS.items():
        both(path, layout, "--local-ranks", ranks, **sets)
    both(path, "uneven-fsdp", "--local-ranks", 2, **e.LAYOUTS["fsdp"][1], **{"run.batch": 9, "run.micro_batch": 3})


def test_a_run_goes_on_as_if_it_had_not_ended():
    path = recipe("goes-on", loader=dict(encode_ahead=1))
    t.goes_on_bit_for_bit(path)
    t.train(path, "never-ahead", run__steps=6, loader__encode_ahead=0)
    t.same_metrics("in-one-go", "never-ahead")
    t.same_state("in-one-go", "never-ahead")


def test_a_run_that_is_killed_or_stopped_goes_on():
    path = recipe("ended", loader=dict(encode_ahead=1))
    words = ["train", path, *t.sets({"run.steps": 60, "checkpoint.every": 5, "validate.every": 0})]
    t.run(*words, *t.sets({"run.output": str(t.work / "not-ended"), "loader.encode_ahead": 0}))
    for name, ends, code in (("killed", signal.SIGKILL, -signal.SIGKILL), ("stopped", signal.SIGTERM, 75)):
        mine = [*words, *t.sets({"run.output": str(t.work / name)})]
        process = t.start(*mine)
        t.wait_for(lambda: t.lines_in(name) >= 6 or process.poll() is not None, "six steps")
        process.send_signal(ends)
        process.wait(t.patient(60))
        if process.returncode:  # else it was done before
            t.equal(process.returncode, code, f"exit code of a run that was {name}")
        t.run(*mine)
        t.same_metrics("not-ended", name)
        t.same_state("not-ended", name)


def test_what_an_encoder_throws_ends_the_run_as_a_step_does():
    """Sample 20 is of the third step. Where no other rank waits for it, the second is done and saved first."""
    path = recipe("thrown", encoder=dict(throws_at=20))
    said = {}
    for layout in ("one", "ddp", "fsdp"):
        ranks, sets = e.LAYOUTS.get(layout, (1, {}))
        for ahead in (0, 1):
            name = f"thrown-{layout}-{ahead}"
            sets = sets | {"checkpoint.every": 1, "loader.encode_ahead": ahead, "run.output": str(t.work / name)}
            done = t.refused(3, ["encoder.text", "sample 20 is too much"], "train", path, *t.sets(sets),
                             *(["--local-ranks", ranks] if ranks > 1 else []))
            said[ahead] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
            if layout == "one":
                t.equal((len(t.metrics(name)), t.checkpoints(name)[-1]), (2, t.checkpoints("thrown-one-0")[-1]), f"what {name} has done")
        t.equal(said[1], said[0], f"what is said of it ({layout})")


def test_an_encoder_that_stands_still_beside_a_step_is_named():
    path = recipe("still", encoder=dict(stops_at=20))
    sets = t.sets({"loader.encode_ahead": 1, "parallel.hang_s": 2, "parallel.timeout_s": 60, "run.output": str(t.work / "still")})
    done = t.run("train", path, *sets, "--local-ranks", 2, code=6, timeout=120)
    t.check("hangs: it stands still in the encoding of its next step" in done.all and "parallel.hang_s" in done.all, done.all)


def test_a_dry_run_says_what_is_kept_for_the_next_step():
    path = t.write_recipe("kept.toml", t.recipe(run=dict(name="kept", steps=2), loader=dict(encode_ahead=1)))
    said, _, _ = dry_run.dry(path)
    t.equal(said["first"]["bytes"]["ahead"], 16 * (64 * 4 + 8), "bytes of 16 pictures and labels")
    t.train(path, "kept", "--trace", "comm")
    t.equal([line["mem"]["ahead"] for line in t.lines_of(t.work / "kept/metrics.jsonl")], [said["first"]["bytes"]["ahead"], 0],
            "bytes after each step")
    without, _, _ = dry_run.dry(path, loader__encode_ahead=0)
    t.equal({"ahead", "encoding"} & set(without["first"]["bytes"]), set(), "shares of a run that does not encode ahead")
    texts, _, _ = dry_run.dry(recipe("kept-texts"), "--text-length", "32", loader__encode_ahead=1)
    kept, meanwhile = (texts["first"]["bytes"][share] for share in ("ahead", "encoding"))
    # Of 8 samples: a picture, its label, an embedded text of 32 places and its mask; and of 4 at least an MLP's hidden numbers.
    t.equal(kept, 8 * (64 * 4 + 8 + 32 * 12 * 4 + 32), "bytes of pictures, labels and texts")
    t.check(4 * 32 * 48 * 4 <= meanwhile < 100 * 4 * 32 * 48 * 4, f"bytes of an encoder at work: {meanwhile}")


def test_no_other_number_is_taken():
    t.refused(2, ["encode_ahead", "2"], "train", recipe("two"), *t.sets({"loader.encode_ahead": 2, "run.output": str(t.work / "never")}))


if __name__ == "__main__":
    t.main(globals())
