"""What the benchmarks' tables have in common."""
import pathlib
import platform
import re
import statistics


def processor():
    names = re.findall(r"^model name\s*:\s*(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return names[0].strip() if names else platform.machine()


def spread(values, form):
    """Their median, and in brackets the least and the largest."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def write(lines, folder, name):
    """Prints them, and writes them to NAME-PROCESSOR.md in the folder."""
    text = "\n".join(lines) + "\n"
    print(text)
    folder.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", f"{name} {processor()}".lower())).strip("-")
    (folder / f"{slug}.md").write_text(text)
