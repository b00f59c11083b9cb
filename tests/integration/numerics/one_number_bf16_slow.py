"""run.numerics = "one" with run.precision = "bf16" at length: digits of width 192, and experts, on the layouts of
one_number_slow.py's smaller models, with every kernel set and with the best one."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402
from one_number_slow import BOTH, FEW, OF_EXPERTS, SETTINGS, STEPS, TWELVE, context, different_layouts, layout  # noqa: E402


def path_of(name, **model):
    run = dict(name=name, batch=16, numerics="one", precision="bf16", token_leaf=8, clip_norm=0.5)
    return t.write_recipe(f"{name}.toml", t.recipe(run=run, model=dict(patch=1, **model)))


def test_digits():
    layouts = TWELVE | {"ring 2": layout(2, **context("ring"))}
    settings = [(*setting, FEW if setting[2] == "exact_plain" else STEPS) for setting in SETTINGS]
    path = path_of("rounded", depth=3, width=192, heads=12)
    t.equal(different_layouts(path, layouts, lambda number: settings, "rounded"), [], "layouts with another hash")


def test_experts():
    path = path_of("experts", plugin="dit_moe", depth=2, width=48, heads=12, experts=4, router="token_choice", shared_ratio=1, qk_norm=True)
    t.equal(different_layouts(path, OF_EXPERTS, BOTH, "experts"), [], "layouts with another hash")


if __name__ == "__main__":
    t.main(globals())
