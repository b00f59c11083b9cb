"""Claim (plugins): No room of the host includes a room above it, no two units include each other in a circle but those listed,
and folders and files stay small; the rooms and their floors are those of docs/architecture.md."""

import collections
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

MOST_FILES, MOST_LINES = 30, 450
# Units in a circle: a detail that needs a type of the whole. Each is to be untied by taking the type down.
KNOWN = [{"config/idle_options", "config/numerics", "config/recipe", "config/sections"}]


def sources(folder):
    return sorted(path for path in (t.source / folder).rglob("*") if path.suffix in (".h", ".cpp"))


def includes():
    """Of core: (file, file that it includes), without suffixes and `core/`."""
    for path in sources("core"):
        for found in re.findall(r'^#include "core/([^"]+)\.h"', path.read_text(), re.M):
            yield str(path.relative_to(t.source / "core").with_suffix("")), found
        for found in re.findall(r'^#include "([^/"]+)\.h"', path.read_text(), re.M):
            yield tuple(str(unit.relative_to(t.source / "core").with_suffix("")) for unit in (path, path.with_name(found + ".h")))


def sdk_includes():
    """Of the SDK: a unit is a header of include/ditto, and its source in src, with the same name below them."""
    for part in ("sdk/include/ditto", "sdk/src"):
        for path in sources(part):
            for found in re.findall(r'^#include (?:<ditto/|")([^>"]+)\.h[>"]', path.read_text(), re.M):
                yield str(path.relative_to(t.source / part).with_suffix("")), found


def room(unit):
    return unit.rsplit("/", 1)[0]


def table():
    page = (t.source / "docs/architecture.md").read_text()
    rows = page[page.index("<!-- floors:"):page.index("<!-- end of floors -->")]
    return {name: int(floor) for floor, name in re.findall(r"^\| (\d+) \| `([^`]+)` \|", rows, re.M)}


def test_rooms_include_those_below_them():
    floors = table()
    t.equal(sorted(floors), sorted({room(str(path.relative_to(t.source / "core"))) for path in sources("core")}),
            "rooms of core, and of the table in docs/architecture.md")
    up = {f"{a} includes {b}: floor {floors[room(a)]} -> {floors[room(b)]}" for a, b in includes()
          if room(a) != room(b) and floors[room(a)] <= floors[room(b)]}
    t.check(not up, "\n".join(["includes that do not go down:", *sorted(up)]))


def test_no_circle_of_units_but_those_that_are_known():
    graph = collections.defaultdict(set)
    for a, b in [*includes(), *(("sdk/" + a, "sdk/" + b) for a, b in sdk_includes())]:
        if a != b:
            graph[a].add(b)

    def reached(start):
        seen, todo = set(), [start]
        while todo:
            for unit in graph[todo.pop()] - seen:
                seen.add(unit)
                todo.append(unit)
        return seen

    reach = {unit: reached(unit) for unit in list(graph)}
    circles = {frozenset(b for b in reach[a] if a in reach.get(b, ())) | {a} for a in reach if any(
        a != b and a in reach.get(b, ()) for b in reach[a])}
    t.equal(sorted(map(sorted, circles)), sorted(map(sorted, KNOWN)), "circles of units")


def test_who_may_include_whom():
    forbidden = {"sdk": r'#include [<"](core|apps|plugins)/', "core": r'#include [<"](apps|plugins)/',
                 "plugins": r'#include [<"](core|apps|plugins)/'}
    for folder, pattern in forbidden.items():
        for path in sources(folder):
            t.check(not re.search(pattern, path.read_text()), f"{path} includes what is above it")


def test_unit_tests_lie_in_rooms_that_have_the_names_of_the_sources():
    unit = t.source / "tests/unit"
    for path in unit.rglob("*_test.cpp"):
        own = path.parent.relative_to(unit)
        places = [t.source / "core" / own, t.source / own, t.source / "sdk/src" / pathlib.Path(*own.parts[1:])]
        there = own.parts and any(place.is_dir() for place in places)
        t.check(there, f"{path.relative_to(t.source)}: there is neither core/{own} nor {own}")


def test_folders_and_files_are_small():
    for folder in [path for path in (t.source / "core").rglob("*") if path.is_dir()]:
        count = len([path for path in folder.iterdir() if path.suffix in (".h", ".cpp")])
        t.check(count <= MOST_FILES, f"{folder.relative_to(t.source)} has {count} files: at most {MOST_FILES}")
    for folder in ("core", "sdk", "plugins", "apps"):
        for path in sources(folder):
            lines = len(path.read_text().splitlines())
            t.check(lines <= MOST_LINES, f"{path.relative_to(t.source)} has {lines} lines: at most {MOST_LINES}")


if __name__ == "__main__":
    t.main(globals())
