"""A cascade of three tiny stages, 4 -> 8 -> 16 px, for tests. Its texts are embedded already, and its pictures are drawn."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

STAGES = ("base", "sr8", "sr16")
SIDES = dict(base=4, sr8=8, sr16=16)
UNET = dict(plugin="imagen_unet", embed_dim=32, channel_mult=[1], num_res_blocks=[1], per_head_channels=16, cond_dim=32, token_length=4,
            feature_pooling_type="mean")


def stage(name, **sections):
    side = SIDES[name]
    enlarges = name != "base"
    tree = dict(run=dict(name=name, steps=20, batch=4, micro_batch=2), checkpoint=dict(every=4, keep=2), validate=dict(every=0),
                data=t.synthetic(classes=0, channels=1, height=side, width=side, text_tokens=4, text_width=32, samples=64),
                encoder__image=dict(plugin="pyramid", size=[side // 2] * 2) if enlarges else dict(plugin="identity"),
                model=UNET | dict(attention_resolutions=[side], image_size=side, low_res_cond=enlarges))
    for section, options in sections.items():
        tree[section] = {key: value for key, value in (tree.get(section, {}) | options).items() if value is not None}
    return t.write_recipe(f"{name}.toml", t.recipe(**tree))


def cascade(name="tiny", stages=None, passes="low", **sections):
    """Its file; sections=dict(...) of every stage, or of one: sr8={"run": dict(...)}."""
    stages = stages or STAGES
    own = {name: sections.pop(name, {}) for name in STAGES}
    for one in stages:
        if one in STAGES:
            stage(one, **sections | own[one])
    path = t.work / f"{name}.toml"
    path.write_text(f"[cascade]\nstages = {[f'{one}.toml' for one in stages]}\npasses = \"{passes}\"\n".replace("'", '"'))
    return path


def words(path, output, *more):
    return ["train", path, "--set", f'cascade.output="{t.work / output}"', *more]


def same(a, b, steps=True):
    """Two cascades' folders: every stage's metrics and state."""
    for one in STAGES:
        if steps:
            t.same_metrics(f"{a}/{one}", f"{b}/{one}")
        t.same_state(f"{a}/{one}", f"{b}/{one}")
