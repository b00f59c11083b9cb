"""Archives as people put them together: every byte of a shard is read or spoken of, and a member that nobody asks for costs
its neighbours nothing. What an archive holds Python's tarfile says, with ignore_zeros as `tar --ignore-zeros` has it.

Claim (data): Tars put together by `cat`, with links, sparse files and members that nobody asks for, are read as Python's
tarfile reads them, or what is not is named.
"""

import contextlib
import io
import json
import os
import pathlib
import random
import sys
import tarfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
import bad_files  # noqa: E402

BLOCK, END = 512, bytes(1024)
FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


def member(name, data=b"", format=tarfile.GNU_FORMAT, **fields):
    """One member's headers and data; fields: type, linkname."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(format) + data + bytes(-len(data) % BLOCK)


def sparse(name):
    """GNU's form of a file of 100,000 bytes, of which 512 are stored."""
    whole = member(name, bytes(BLOCK), type=tarfile.GNUTYPE_SPARSE)
    head = bytearray(whole[-2 * BLOCK:-BLOCK])  # behind that of a long name
    head[386:410] = b"%011o\0%011o\0" % (50176, BLOCK)
    head[483:495] = b"%011o\0" % 100000
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return whole[:-2 * BLOCK] + bytes(head) + b"s" * BLOCK


def sample(i, format, label=None):
    key = f"{i:04}" if i % 3 else "d" * 130 + f"/{i:04}" if format != tarfile.USTAR_FORMAT else f"folder/{i:04}"
    return key, [member(f"{key}.png", bad_files.png(i), format), label or member(f"{key}.cls", b"%d" % (i % 2), format)]


def odd(key, rng):
    """A member of a suffix that nobody reads."""
    return rng.choice([
        lambda: member(f"{key}.json", type=tarfile.SYMTYPE, linkname="../elsewhere.json"),
        lambda: member(f"{key}.txt", type=tarfile.LNKTYPE, linkname="nowhere.txt"),
        lambda: member(f"{key}.lock", type=tarfile.FIFOTYPE),
        lambda: member(f"{key}.dev", type=tarfile.CHRTYPE),
        lambda: member(f"{key}.odd", b"of a type that is none", type=b"Q"),
        lambda: sparse(f"{key}.npy"),
        lambda: member("folder", type=tarfile.DIRTYPE),
        lambda: member(f"{key}.md", b"twice") * 2,
        lambda: member("Thumbs.db", b"junk") + member("@eaDir/0001.png/thumb.png", b"junk") + member(f"._{os.path.basename(key)}.png", b"junk"),
    ])()


ENDS = {  # what an archive ends with -> what is said of it
    "an end mark": (END, None),
    "zeros to the end of a record": (END + bytes(9 * 1024), None),
    "zeros that are no whole block": (END + bytes(100), None),
    "a line of text": (END + b"see README\n", "behind the end mark follow 11 bytes that are no archive"),
    "another file's bytes": (END + bytes(range(1, 251)) * 20, "behind the end mark follow 5000 bytes that are no archive"),
    "nothing": (b"", "no end mark"),
    "a member that is cut": (END + member("9999.txt", bytes(3000))[:1500], "is cut off"),
}


def archive(seed, end):
    """Of one to four archives, put together."""
    rng = random.Random(seed)
    data, i, labels = b"", 1, []
    if rng.random() < 0.2:
        data += END  # the first one holds nothing
    for part in range(rng.randint(1, 4)):
        if part:
            data += bytes(BLOCK * rng.choice([1, 2, 2, 10, 20, 127]))
        format = rng.choice(FORMATS)
        for _ in range(rng.randint(1, 4)):
            label, targets = None, [name for name in labels if len(name) < 100 or format != tarfile.USTAR_FORMAT]
            if targets and rng.random() < 0.3:  # as after a deduplication
                key = sample(i, format)[0]
                label = member(f"{key}.cls", format=format, type=tarfile.LNKTYPE, linkname=rng.choice(targets))
            key, members = sample(i, format, label)
            labels.append(f"{key}.cls")
            if rng.random() < 0.5:
                members.insert(rng.randint(0, 2), odd(key, rng))
            data += b"".join(members)
            i += 1
    return data + ENDS[end][0]


def held(data):
    """{name: bytes} of the pictures and labels in it, in order."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(data), ignore_zeros=True) as tar, contextlib.suppress(tarfile.ReadError):  # a member that is cut
        for one in tar:
            base = os.path.basename(one.name)
            if (one.isreg() or one.islnk()) and not one.issparse() and base[-4:] in (".png", ".cls") and base[0] != "." and "@" not in one.name:
                found[one.name] = found[one.linkname] if one.islnk() else tar.extractfile(one).read()
    return found


def recipe_of(shard):
    data = dict(plugin="webdataset", shards=[shard.name], classes=2, channels=1)
    return t.write_recipe(f"{shard.stem}.toml", t.recipe(data=None, validate=dict(every=0), run=dict(steps=1, batch=1)) | {"data": data})


def variants():
    """(path of the archive, of one that tarfile made of the same samples, what is said)"""
    ends = list(ENDS) * 5 if t.slow else ["an end mark", "a line of text"]
    for seed, end in enumerate(ends):
        path, plain = t.work / f"odd{seed}.tar", t.work / f"plain{seed}.tar"
        data = archive(seed, end)
        path.write_bytes(data)
        plain.write_bytes(b"".join(member(name, content) for name, content in held(data).items()) + END)
        yield path, plain, ENDS[end][1]


def test_what_is_put_together_is_read_to_its_end_and_what_is_no_archive_is_said():
    all_of = list(variants())
    shards = json.loads(t.run("data", "inspect", "--json", *(path for path, _, _ in all_of)).stdout)
    for (path, plain, said), report in zip(all_of, shards, strict=True):
        problems = [problem for problem in report["problems"] if "is there twice" not in problem]
        t.check(len(problems) == 1 and said in problems[0] if said else not problems, f"{path.name}: {said} in {problems}")
    for part, code in (([one for one in all_of if not one[2]], 0), ([one for one in all_of if one[2]], 4)):
        recipes = [recipe_of(shard) for path, plain, _ in part for shard in (path, plain)]
        checks = json.loads(t.run("data", "verify", "--json", *recipes, code=code).stdout)
        for (path, _, said), one, other in zip(part, checks[::2], checks[1::2], strict=True):
            t.equal(other["problems"], [], f"problems of what tarfile made of {path.name}")
            t.equal((one["samples"], one["contents"]), (other["samples"], other["contents"]), f"what is learned from of {path.name}: {one}")
            t.check(len(one["problems"]) == 1 and said in one["problems"][0] if said else not one["problems"], f"{path.name}: {said} in {one}")


def test_what_nobody_asks_for_may_be_in_several_of_the_archives():
    """The pictures of a, README.md, the pictures of b, README.md, and all their notes at the end."""
    parts = [b"".join(sample(i, tarfile.USTAR_FORMAT)[1]) + member("README.md", b"notes") + END for i in (1, 2)]
    notes = b"".join(member(f"{i:04}.json", b"{}") for i in (1, 2))
    shard = t.work / "notes.tar"
    shard.write_bytes(b"".join(parts) + notes + END)
    t.check("2 samples to learn from" in t.train(recipe_of(shard), "notes").all, "not both")
    told = t.run("data", "verify", shard, code=4).all  # which holds all of a shard against what a run may ask for
    t.check("README.md" in told and "0001.json" in told and "pictures, height x width x channels: 8 x 8 x 1 (2)" in told, told)
    shard.write_bytes(b"".join(parts) + member("0001.cls", b"0") + END)  # of two labels one is wrong
    t.refused(4, ["notes.tar:0001.cls", "two places"], "config", "check", recipe_of(shard))


def test_a_training_and_strict_hear_of_what_lies_behind_an_end_mark():
    shard = t.work / "tail.tar"
    shard.write_bytes(archive(1, "a line of text"))
    path = recipe_of(shard)
    t.check("behind the end mark" in t.train(path, "tail").all, "no word of it")
    t.refused(4, ["behind the end mark", "loader.strict"], "train", path, *t.sets({"run.output": str(t.work / "strict"), "loader.strict": True}))
    t.refused(4, ["tail.tar", "behind the end mark"], "data", "split", shard, "--validation", 0.5, "--out", t.work / "never")


def test_a_dealt_out_shard_has_every_byte_of_the_one_that_it_was():
    for seed in range(8 if t.slow else 1):
        data = b"".join(b"".join(sample(i, tarfile.GNU_FORMAT)[1]) + member(f"{sample(i, tarfile.GNU_FORMAT)[0]}.TXT", b"%d" % seed) + END
                        for i in range(1, 6)) + member("notes", b"of nobody")
        (t.work / "whole.tar").write_bytes(data + END)
        done = t.run("data", "split", t.work / "whole.tar", "--validation", 0, "--out", t.work / f"dealt{seed}")
        t.check("left out: files that are no part of a sample (1): whole.tar/notes" in done.all, done.all)
        with tarfile.open(t.work / f"dealt{seed}/train-000000.tar") as tar:
            found = [(one.name.split(".", 1)[1], tar.extractfile(one).read()) for one in tar]
        with tarfile.open(t.work / "whole.tar", ignore_zeros=True) as tar:
            expected = [(one.name.split(".", 1)[1].lower(), tar.extractfile(one).read()) for one in tar if "." in one.name]
        t.equal(found, expected, "members of the dealt out shard")
    for name, link in (("symbolic", dict(type=tarfile.SYMTYPE, linkname="0001.png")), ("hard", dict(type=tarfile.LNKTYPE, linkname="x.png"))):
        (t.work / "links.tar").write_bytes(b"".join(sample(1, tarfile.USTAR_FORMAT)[1]) + member("0002.png", **link) + END)
        t.refused(4, ["links.tar:0002.png", f"is a {name} link", "cannot be copied"], "data", "split", t.work / "links.tar", "--validation", 0,
                  "--out", t.work / "never")


def test_pictures_and_labels_that_are_links_are_read_or_spoken_of():
    one, two = sample(1, tarfile.USTAR_FORMAT)[1], sample(2, tarfile.USTAR_FORMAT)[1]
    for name, members, part in (
            ("label", [*one, two[0], member("0002.cls", type=tarfile.SYMTYPE, linkname="0001.cls")], "has no member \"0002.cls\" beside it: that one is a symbolic link"),
            ("sparse", [*one, two[0], sparse("0002.cls")], "has no member \"0002.cls\" beside it: that one is a sparse file")):
        shard = t.work / f"{name}.tar"
        shard.write_bytes(b"".join(members) + END)
        t.refused(4, [f"{name}.tar:0002.png", part], "config", "check", recipe_of(shard))
        t.check("0002.cls is a s" in t.run("data", "inspect", shard).all, "no word of it by inspect")
    shard = t.work / "picture.tar"
    shard.write_bytes(b"".join(one) + member("0002.png", type=tarfile.SYMTYPE, linkname="0001.png") + two[1] + END)
    t.check("picture.tar:0002.png is a symbolic link, which is not followed; 1 such members left out" in t.train(recipe_of(shard), "picture").all, "no word of it")


def test_what_lies_behind_the_last_sample_of_an_index_is_said():
    folder = t.work / "indexed"
    for i in range(4):
        path = t.work / f"pictures/{'ab'[i % 2]}/{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bad_files.png(i))
    t.run("data", "prepare", t.work / "pictures", "--out", folder)
    shard = folder / "train-000000.tar"
    data = dict(plugin="webdataset", path=str(folder), label="cls", channels=1)
    path = t.write_recipe("indexed.toml", t.recipe(data=None, run=dict(steps=1, batch=1)) | {"data": data})
    t.run("data", "verify", path)
    whole = shard.read_bytes()
    for more, part in ((b"".join(sample(7, tarfile.GNU_FORMAT)[1]) + END, 'come 2 members more, the first "0007.png", which are not read'),
                       (b"text", "bytes that are not read")):
        shard.write_bytes(whole + more)
        t.check("behind the last sample of its index" in t.run("data", "verify", path, code=4).all, part)
        t.check(part in t.train(path, f"indexed-run{len(more)}").all, f"no \"{part}\"")
        t.run("data", "verify", folder, code=4)


if __name__ == "__main__":
    t.main(globals())
