"""summarize.py RESULTS.xml: what did not run and why, and one line about the rest, from ctest's JUnit file.

A test that leaves something out, all or a part of it, prints a line "not run: WHAT AND WHY".
"""

import sys
import xml.etree.ElementTree as xml

cases = xml.parse(sys.argv[1]).getroot().findall("testcase")
left_out = []
for case in cases:
    output = case.findtext("system-out", "")
    left_out += [f"  {case.get('name')}: {line[9:]}" for line in output.splitlines() if line.startswith("not run: ")]
if left_out:
    print("not run:", *left_out, sep="\n")

count = {status: sum(case.get("status") == status for case in cases) for status in ("run", "fail", "notrun")}
failed = [case.get("name") for case in cases if case.get("status") == "fail"]
print(f"tests: {count['run']} passed, {count['fail']} failed, {count['notrun']} not run" + "".join(f"\n  failed: {f}" for f in failed))
