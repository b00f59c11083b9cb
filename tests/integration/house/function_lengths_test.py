"""Functions stay short, as lizard counts them.

Claim (plugins): No function of the host, the SDK, the plugins or the program has 80 lines or more.
"""

import os
import pathlib
import sys

try:
    import lizard
except ImportError:
    print("not run: the Python peers were made before lizard was one of them (./dev peers)")
    sys.exit(77)

SOURCE = pathlib.Path(os.environ.get("DITTO_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[3]))
MOST_LINES, MOST_UNREAD = 79, 0.1


def longer(functions):
    return [one for one in functions if one.length > MOST_LINES]


# It counts from the name to the brace that closes.
for lines in (MOST_LINES, MOST_LINES + 1):
    text = "struct A {\n  void f();\n};\nvoid A::f() {\n" + "  g();\n" * (lines - 2) + "}\n"
    read = lizard.analyze_file.analyze_source_code("made.cpp", text).function_list
    assert [one.length for one in read] == [lines] and bool(longer(read)) == (lines > MOST_LINES), [one.__dict__ for one in read]

count, empty, sources, found = 0, [], 0, []
for folder in ("core", "sdk", "plugins", "apps"):
    for path in sorted(path for path in (SOURCE / folder).rglob("*") if path.suffix in (".h", ".cpp", ".cu")):
        functions = lizard.analyze_file(str(path)).function_list
        count += len(functions)
        if path.suffix != ".h":
            sources += 1
            if not functions:
                empty.append(str(path))
        found += [f"{path.relative_to(SOURCE)}:{one.start_line}: {one.name} has {one.length} lines: at most {MOST_LINES}"
                  for one in longer(functions)]
# A source that it does not understand would have none.
assert sources and len(empty) <= MOST_UNREAD * sources, f"of {sources} sources {len(empty)} have no function: {empty}"
if found:
    sys.exit("\n".join(found))
print(f"{count} functions, each of at most {MOST_LINES} lines")
