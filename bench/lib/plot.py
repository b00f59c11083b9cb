"""Plots as SVG files, which are the same for the same numbers."""
import matplotlib

matplotlib.use("svg")
matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "ditto", "font.size": 9, "axes.titlesize": "medium",
                        "axes.grid": True, "grid.color": "#dddddd", "legend.frameon": False}
from matplotlib import pyplot  # noqa: E402


def panels(rows, columns):
    """A figure, and its axes row by row."""
    return pyplot.subplots(rows, columns, figsize=(3.9 * columns, 3.1 * rows), layout="constrained", squeeze=False)


def save(figure, path):
    """With one legend for all panels, below them."""
    lines = {line.get_label(): line for axes in figure.axes for line in axes.lines if not line.get_label().startswith("_")}
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=len(lines))
    figure.savefig(path, metadata={"Date": None})
    text = path.read_text()
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")
