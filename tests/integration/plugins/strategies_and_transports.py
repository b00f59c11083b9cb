"""A strategy that serves no axis and a transport, each a plugin of somebody else's: a recipe names them, the host knows
neither, and the bits are those of a run without."""

import pathlib
import shutil
import sys
import tomllib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402


def plugins(*names):
    """A folder of its own with these libraries of tests/fixture_plugins."""
    folder = t.work / "-".join(names)
    folder.mkdir(exist_ok=True)
    for name in names:
        shutil.copy(t.build / f"tests/fixture_plugins/{name}.so", folder)
    return "--plugin-path", folder


def recipe(name, **sections):
    return t.write_recipe(f"{name}.toml", t.recipe(**dict(run=dict(steps=4), parallel=dict(timeout_s=120.0)) | sections))


def on_two(path, folder, *words, **options):
    return t.train(path, folder, "--local-ranks", 2, *words, **options)


def line_of(path, key):
    """Where a recipe gives an option, as messages say it."""
    lines = path.read_text().splitlines()
    return f"{path.name}:{next(number for number, line in enumerate(lines, 1) if line.startswith(f'{key} = '))}:"


def of_run(folder, section):
    return tomllib.loads((t.work / folder / "run.toml").read_text())[section]


def same(a, b):
    t.same_metrics(a, b)
    t.same_state(a, b)


# --- a strategy without an axis ----------------------------------------------------------------------------------------


def test_a_listed_strategy_takes_part_and_a_resume_goes_on_with_it():
    where = plugins("counting")
    given = dict(parallel__strategies=["counting"], parallel__counts=str(t.work / "counts"))
    on_two(recipe("listed"), "without")
    on_two(recipe("listed"), "listed", *where, **given, run__steps=2)
    t.check("strategies" not in of_run("without", "parallel"), "run.toml notes what was not given")
    t.equal(of_run("listed", "parallel")["strategies"], ["counting"], "strategies in run.toml")
    on_two(t.work / "listed/run.toml", "listed", *where, run__steps=4)
    same("without", "listed")
    for rank in (0, 1):  # condition, tokens, two blocks, head and objective of a micro-batch
        t.equal((t.work / f"counts.{rank}").read_text().split(), ["6"] * 4, f"units of rank {rank}'s steps")


def test_a_listed_strategy_goes_with_layouts_and_with_strategies_that_have_an_option():
    where = plugins("counting")
    for name, layout in (("fsdp", dict(parallel__shard=2, parallel__shard_plugin="fsdp", parallel__recompute="blocks")),
                         ("tensor", dict(parallel__tensor=2, run__numerics="one"))):
        on_two(recipe(name), f"{name}-without", **layout)
        on_two(recipe(name), f"{name}-listed", *where, **layout, parallel__strategies=["counting"])
        same(f"{name}-without", f"{name}-listed")


def test_strategies_that_are_wrongly_given_are_refused_at_their_line():
    where = plugins("counting")
    for name, given, code, parts in (
            ("twice", ["counting", "counting"], 2, ['names "counting" twice', "name each once"]),
            ("axis", ["fsdp"], 2, ['parallel.strategies names "fsdp", which serves the axis shard', 'shard_plugin = "fsdp"']),
            ("unknown", ["countin"], 3, ["no parallel 'countin'", "did you mean 'counting'?"]),
            ("own", ["recompute"], 2, ['names "recompute", which has an option of its own', "parallel.recompute"])):
        path = recipe(name, parallel=dict(strategies=given))
        parts = [line_of(path, "strategies"), *parts]
        t.refused(code, parts, "config", "check", path, *where)
        t.refused(code, parts, "train", path, *where, *t.sets({"run.output": str(t.work / "never")}))
    # Its options go with it.
    path = recipe("alone", parallel=dict(counts="nowhere"))
    t.refused(2, [line_of(path, "counts"), "parallel.counts is read by nobody"], "config", "check", path, *where)


# --- a transport -------------------------------------------------------------------------------------------------------


def test_a_transport_carries_all_and_a_resume_goes_on_with_it():
    where = plugins("relay")
    path = recipe("carried")
    t.check("(shared memory)" in on_two(path, "own", "--trace", "comm").all, "the host's own is not shared memory")
    done = on_two(path, "carried", *where, "--trace", "comm", run__transport="relay", run__steps=2)
    t.check("(relay)" in done.all, f"ranks do not talk by the relay: {done.all}")
    t.check("transport" not in of_run("own", "run"), "run.toml notes what was not given")
    t.equal(of_run("carried", "run")["transport"], "relay", "transport in run.toml")
    done = on_two(t.work / "carried/run.toml", "carried", *where, "--trace", "comm", run__steps=4)
    t.check("(relay)" in done.all, f"ranks that go on do not talk by the relay: {done.all}")
    same("own", "carried")


def test_a_transport_carries_pieces_and_stages():
    where = plugins("relay")
    for name, layout in (("fsdp", dict(parallel__shard=2, parallel__shard_plugin="fsdp")),
                         ("pipeline", dict(parallel__pipeline=2, run__micro_batch=4))):
        on_two(recipe(name), f"{name}-own", **layout)
        on_two(recipe(name), f"{name}-carried", *where, **layout, run__transport="relay")
        same(f"{name}-own", f"{name}-carried")


def test_transports_that_are_wrongly_given_are_refused_at_their_line():
    where = plugins("relay")
    for name, given, code, parts in (
            ("missing", dict(transport="relais"), 3, ["no transport 'relais'", "did you mean 'relay'?"]),
            ("device", dict(transport="relay", device="cuda"), 2,
             ['run.transport = "relay" carries tensors of cpu, and run.device = "cuda"', "leave it out"])):
        path = recipe(name, run=given)
        parts = [line_of(path, "transport"), *parts]
        t.refused(code, parts, "config", "check", path, *where)
        t.refused(code, parts, "train", path, *where, *t.sets({"run.output": str(t.work / "not begun")}))
    t.check(not (t.work / "not begun").exists(), "a folder was made")


if __name__ == "__main__":
    t.main(globals())
