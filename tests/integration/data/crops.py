"""Parts of large pictures, and small pictures of them: what a model that enlarges learns from.

Claim (data): Of a sample the encoder `pyramid` takes one part of its picture, by the sample's id: on 1, 2 and 4 ranks, in any
micro-batch, after a resume; the next epoch takes another; and the small picture shows the part's place.
"""

import pathlib
import struct
import sys
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import shards as s  # noqa: E402

SIDE, PART, SMALL, COUNT, BATCH, STEPS = 1024, 64, 16, 8, 4, 6


def picture():
    """A PNG whose red is its columns and whose green its rows, in steps of four pixels."""
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    rows = b"".join(b"\0" + b"".join(bytes((x // 4, y // 4, 0)) for x in range(SIDE)) for y in range(SIDE))
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")


def recipe(name):
    """One picture, COUNT times: so the part alone is another."""
    shard = t.work / "places/0.tar"
    if not shard.exists():
        one = picture()
        s.tar(shard, [(f"{i}.png", one) for i in range(COUNT)])
    return t.write_recipe(f"{name}.toml", t.recipe(
        run=dict(name=name, steps=STEPS, batch=BATCH, micro_batch=1, threads=1), checkpoint=dict(every=2, keep=3),
        data=dict(plugin="webdataset", shards=[str(shard)], label="none", classes=0, channels=3, image=["png"], size=[SIDE, SIDE]),
        model=dict(plugin="dit", depth=1, width=16, heads=2, patch=8),
        objective=dict(plugin="diffusion", condition_dropout=0.0),
        encoder__image=dict(plugin="pyramid", size=[SMALL, SMALL], crop=[PART, PART]),
        encoder__seen=dict(plugin="pixels_seen", file=str(t.work / f"{name}.txt"))))


def seen(name, *words, **options):
    t.train(recipe(name), name, "--plugin-path", t.build / "tests/fixture_plugins/pixels_seen.so", *words, **options)
    return places(name)


def places(name):
    """By the sample's id what was seen of it, once or more often: (columns, rows of the part; of the small picture)."""
    found = {}
    for line in (t.work / f"{name}.txt").read_text().splitlines():
        number, *numbers = line.split()
        found.setdefault(int(number), set()).add(tuple(float(one) for one in numbers))
    t.check(all(len(each) == 1 for each in found.values()), f"{name}: a sample was seen as two")
    return {number: next(iter(each)) for number, each in found.items()}


def test_a_sample_has_its_part_on_any_ranks_and_after_a_resume():
    one = seen("one")
    t.equal(sorted(one), list(range(STEPS * BATCH)), "samples")
    t.check(len(set(one.values())) == len(one), "no two samples of one picture have one part, three epochs long")
    for ranks, micro_batch in ((1, 4), (2, 2), (4, 1)):
        t.equal(seen(f"ranks-{ranks}", "--local-ranks", ranks, **{"run.micro_batch": micro_batch}), one,
                f"parts on {ranks} ranks, in micro-batches of {micro_batch}")
    seen("halves", **{"run.steps": 3})
    t.equal(seen("halves", "--local-ranks", 2), one, "parts of a run that went on, on other ranks")


def test_the_small_picture_shows_the_parts_place():
    for number, (column, row, small_column, small_row) in places("one").items():
        t.check(abs(column - small_column) < 2e-3 and abs(row - small_row) < 2e-3, f"sample {number}: the small picture is of another place")
    spread = [place[0] for place in places("one").values()]
    t.check(max(spread) - min(spread) > 0.8, f"parts are of everywhere: {spread}")


if __name__ == "__main__":
    t.main(globals())
