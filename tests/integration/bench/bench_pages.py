"""What is said of speed is what was measured: the tables of README.md and docs/performance.md are made of the pages in bench/results,
and these say of themselves where the machine was not quiet, and keep what people write on them.

Claim (machine): The tables of speed of README.md and docs/ are those of bench/results.
"""

import argparse
import json
import pathlib
import re
import shutil
import sys
import tarfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

sys.path[:0] = [str(t.source / "bench/lib"), str(t.source / "bench")]
sys.dont_write_bytecode = True
import encode  # noqa: E402
import memory  # noqa: E402
import report  # noqa: E402
import speed_table  # noqa: E402
import vocabularies  # noqa: E402

RESULTS = t.source / "bench/results"
PERFORMANCE, README = speed_table.TABLES


def pages():
    return sorted(RESULTS.glob("*.md"))


def text_of(page):
    return (t.source / page).read_text()


def test_tables_of_speed_are_the_pages():
    for page in speed_table.TABLES:
        t.equal(speed_table.differences(text_of(page), RESULTS, page), [], f"{page}, which is not bench/results'; bench/lib/speed_table.py --write")
    t.equal(speed_table.written(text_of(README), README).count("\n| ") - 1, 6, "rows of README.md's table of speed")


def test_a_cell_that_is_not_its_pages_is_found():
    for page, cell, other in ((PERFORMANCE, "| 1.24, 0.99 |", "| 1.23, 1.04 |"), (PERFORMANCE, "| 73 %, 66 % |", "| 47 %, 30 % |"),
                              (PERFORMANCE, "| 2.19 (webdataset) |", "| 3.18 |"), (README, "| 0.88 | 0.83 |", "| 1.88 | 0.83 |")):
        text = text_of(page)
        t.check(cell in text, f"{page} has no {cell}")
        found = speed_table.differences(text.replace(cell, other, 1), RESULTS, page)
        t.check(any(other in line for line in found) and any(cell in line for line in found), f"{other} for {cell}: {found}")


def test_the_best_peer_is_in_the_tables():
    folder = t.work / "results"
    shutil.copytree(RESULTS, folder)
    page = folder / "loader-amd-epyc-26-2.md"
    text = page.read_text()
    t.check("2.19 (webdataset)" in speed_table.made_of(folder, PERFORMANCE), "the nearest peer of PNG is not webdataset")
    page.write_text(text.replace("| SPDL | 1371 | 5.69 ", "| SPDL | 9999 | 0.78 "))
    t.check("0.78 (SPDL)" in speed_table.made_of(folder, PERFORMANCE), "a peer that is faster than Ditto is left out")
    video = folder / "video-amd-epyc-25-17.md"
    video.write_text(video.read_text().replace("0.99 (0.98", "0.91 (0.90"))
    t.check("1.24, 0.91" in speed_table.made_of(folder, PERFORMANCE), "a loss on a page is none in the table")


def test_pages_of_machines_that_were_not_quiet_say_so_at_the_top():
    loud = 0
    for path in pages():
        lines = path.read_text().splitlines()
        t.check(lines[0].startswith("# ") and lines[1] == "", f"{path.name} begins with {lines[:2]}")
        loads = [float(one) for one in re.findall(r"load average(?: before the run)?:? (\d+\.\d\d)", "\n".join(lines[3:]))]
        above = [one for one in loads if one > 0.5]
        says = lines[2].startswith("**Not a quiet machine")
        t.equal(says, bool(above), f"{path.name} was measured at loads of {loads}: whether its top says so")
        t.check(all(f"{one:.2f}" in lines[2] for one in above), f"{path.name} says: {lines[2]}")
        loud += says
    t.check(loud > 10, f"only {loud} pages say so: were the loads read?")


def test_benchmarks_write_the_load_and_keep_notes():
    lines = lambda load: ["# Title", "", "Written by a test.", "", f"- processor: this; load average before the run: {load:.2f}", "", "| a |", "|---|", "| 1 |"]
    for load in (0.0, 0.5, 0.51, 7.0, 12.34):
        top = report.page(lines(load)).splitlines()[2]
        t.equal(top.startswith("**Not a quiet machine") and f"{load:.2f}" in top, load > 0.5, f"the top of a page at a load of {load}: {top}")
    report.write(lines(0.1), t.work, "page", "here")
    path = t.work / "page-here.md"
    notes = f"{report.NOTES}\n\nThe cause is known.\n\n| by hand |\n|---|\n| 2 |\n"
    path.write_text(path.read_text() + "\n" + notes)
    for load in (7.0, 0.2):
        report.write(lines(load)[:-1] + ["| 3 |"], t.work, "page", "here")
        text = path.read_text()
        t.check(text.endswith("| 3 |\n\n" + notes), f"what people wrote is not there: {text}")
        t.check("| 1 |" not in text and text.count(report.NOTES) == 1, text)
        t.equal("Not a quiet machine" in text, load > 0.5, "whether the new page says so")


def test_what_follows_the_last_table_of_a_page_is_kept():
    """Prose behind the tables is people's: below the mark a new run keeps it, above it would be lost."""
    for path in pages():
        text = path.read_text()
        if "`./dev bench" not in text or path.stem == "learning-faster":
            continue
        made = text.split(report.NOTES)[0]
        prose = [line for line in made.rsplit("\n|", 1)[-1].splitlines()[1:] if line]
        known = re.compile(r"- |## Start-up|From the start of the process")
        t.check(all(known.match(line) for line in prose), f"{path.name} has lines that a new run overwrites: {prose}")


def test_shares_of_memory_are_those_of_what_was_counted():
    for path in RESULTS.glob("memory-*.md"):
        lines = path.read_text().splitlines()
        found = [line for line in lines if line.startswith("| bf16 |")]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in found]
        counted = {label: (int(stays) * 10**6, int(peak) * 10**6) for _, label, stays, peak, *_ in cells}
        t.equal(memory.rows("bf16", counted), found, path.name)
        t.check(memory.HEAD[0] in lines, f"{path.name} has other columns")


def test_ratios_of_sizes_are_to_one_sample_a_forward():
    for path in RESULTS.glob("sizes-*.md"):
        rows = {cells[0]: cells for cells, _ in speed_table.Pages(RESULTS).rows(path.stem)}
        one = float(rows["one sample a forward"][1])
        for label, cells in rows.items():
            t.check(abs(one / float(cells[1]) - float(cells[3].split()[0])) < 0.02, f"{path.name}, {label}: {cells}")


def test_the_contrast_in_docs_is_the_page():
    table = [line for line in (RESULTS / "contrast.md").read_text().splitlines() if line.startswith("|")]
    t.check(len(table) > 20, "bench/results/contrast.md has no table")
    t.check("\n".join(table) in text_of("docs/choosing_a_layout.md"), "the contrast of docs/choosing_a_layout.md is not bench/results/contrast.md")


def test_texts_of_the_encoders_bench_fill_every_place():
    folder = t.work / "texts"
    for kind, plugin, format, tokens in (("t5", "t5", "transformers", 128), ("clip", "clip_text", "transformers5", 77)):
        (folder / kind).mkdir(parents=True)
        (vocabularies.write_t5 if kind == "t5" else vocabularies.write_clip)(folder / kind)
        encode.texts(folder, kind, plugin, format, tokens)
        with tarfile.open(folder / f"{kind}.tar") as tar:
            captions = [tar.extractfile(one).read().decode() for one in tar.getmembers() if one.name.endswith(".txt")]
        said = json.loads(t.run("tokenize", folder / f"{kind}.toml", *captions, "--json", "--set", "encoder.text.weights=absent", "--set",
                                f"encoder.text.tokenizer={folder / kind}").stdout)
        t.equal({len(one["ids"]) for one in said}, {tokens}, f"places of {kind}")
        t.equal({one["length"] for one in said}, {tokens}, f"lengths of {kind}")
        t.check(len({tuple(one["ids"]) for one in said}) > 16, f"texts of {kind} are alike")


def case_of(work, precision, args, theirs, ours):
    case = encode.Case(work, precision, args)
    case.peers = {setting: list(seconds) for setting, seconds in zip(case.settings, theirs)}
    case.memory = dict(zip(case.settings, (900e6, 800e6)))
    case.ours, case.our_memory = list(ours), 400e6
    return case


def test_a_page_of_encoders_says_ratios_shares_and_which_bound_applies():
    args = argparse.Namespace(pictures=1, compile=False, rounds=3, repeats=3, threads=2)
    cases = [case_of("vae_encode", "bf16", args, ((3.0, 3.0, 3.0), (2.0, 4.0, 2.2)), (1.0, 2.0, 2.0)),
             case_of("t5", "bf16", args, ((1.2, 1.2, 1.2), (1.5, 1.5, 1.5)), (1.0, 1.0, 1.0))]
    for slow, bound in ((0.2, "1.5"), (0.4, "1.1")):
        rates = encode.Rates()
        rates.add({"products": {"fp32": 0.4, "bf16": 0.5}, "convolutions": {"fp32": 0.3, "bf16": slow}})
        rates.add({"products": {"bf16": 1.0}})
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in encode.bounds_table(cases, rates)][2:]
        t.equal(rows[0], ["encode 256 x 256, batch 1", "bf16", "channels last", "2.00 (1.10 to 2.00)", bound, "0.50", "1.0"], "the row")
        t.equal(rows[1][2:4], ["eager", "1.20 (1.20 to 1.20)"], "the faster setting")
        t.check(("slower" in encode.rate_lines(rates)[1]) and ("no slower" in encode.rate_lines(rates)[1]) == (bound == "1.1"),
                encode.rate_lines(rates)[1])
    times = list(encode.times_table(cases, rates, {"vae_encode": 1e12, "t5": 0.1e12}))
    t.check("| 500 | 50 % | 400 | |" in times[4].replace("|  |", "| |"), f"a batch of 1e12 operations in 2 s, at a peak of 1e12 a second: {times[4]}")
    t.check("| 800 | 80 % |" in times[7], f"eight texts a batch: {times[7]}")

    folder = t.work / "encode-results"
    folder.mkdir()
    (folder / "encode-amd-epyc-25-17.md").write_text("\n".join(["# Encoders", "", *encode.bounds_table(cases, rates)]))
    t.check("| … bf16 | | 2.00, – | | |" in speed_table.made_of(folder, PERFORMANCE), "the ratio of encoding is not in the table of speed")


if __name__ == "__main__":
    t.main(globals())
