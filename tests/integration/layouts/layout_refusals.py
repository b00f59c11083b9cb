"""Layouts that cannot be: each is refused once, before training, with both sides, their numbers and what to do.

Claim (failures): A layout that cannot be is refused before any rank starts, with the numbers.
"""

import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402


def recipe(name, parallel, **sections):
    tree = t.recipe(run=dict(steps=2, batch=8, micro_batch=2), parallel=parallel, **sections)
    return t.write_recipe(f"{name}.toml", tree)


def refuse(ranks, parts, parallel, name="layout", **sections):
    path = recipe(name, parallel, **sections)
    shutil.rmtree(t.work / "never", ignore_errors=True)
    arguments = ["train", path, *t.sets({"run.output": str(t.work / "never")})]
    done = t.refused(2, parts, *arguments, *(["--local-ranks", ranks] if ranks > 1 else []))
    t.check("Traceback" not in done.all and "frame #" not in done.all, done.all)
    t.check(not any((t.work / "never").glob("checkpoints/step_*")), "it trained")
    return done


def refuse_before_ranks(ranks, parts, parallel, **sections):
    """Known from the recipe, the model and the data: no rank was started, so nothing was made."""
    refuse(ranks, parts, parallel, **sections)
    t.check(not (t.work / "never").exists(), "a rank was started")


def test_degrees_whose_product_does_not_divide_the_ranks():
    refuse_before_ranks(4, ["tensor 3 = 3", "do not divide the world size 4", "start 3 ranks"], dict(tensor=3))


def test_degrees_whose_product_is_not_the_number_of_ranks():
    refuse_before_ranks(4, ["replicate 2 x tensor 3 = 6", "not the world size 4", "start 6 ranks"], dict(tensor=3, replicate=2))
    refuse_before_ranks(2, ["shard 4", "do not divide the world size 2"], dict(shard=4, shard_plugin="fsdp"))


def test_one_rank_for_a_recipe_of_several():
    refuse(1, ["tensor 2 = 2", "world size 1", "start 2 ranks"], dict(tensor=2))


def test_an_axis_without_a_plugin():
    refuse_before_ranks(2, ["parallel.context = 2, but no plugin serves this axis", "parallel.context_plugin"],
                        dict(context=2, context_plugin=""))
    refuse_before_ranks(2, ["parallel.pipeline = 2, but no plugin serves this axis"], dict(pipeline=2, pipeline_plugin=""))


def test_a_plugin_of_another_axis():
    refuse_before_ranks(2, ["parallel.context_plugin = \"tensor\" serves another axis"], dict(context=2, context_plugin="tensor"))


def test_heads_that_the_tensor_degree_does_not_divide():
    refuse_before_ranks(3, ["parallel.tensor: 3 does not divide the 4 attention heads", "use 1, 2 or 4"], dict(tensor=3))
    refuse_before_ranks(3, ["3 does not divide the", "heads"], dict(tensor=3), model=dict(plugin="dit_moe", depth=2, width=32, heads=4,
                                                                                       patch=2, experts=3))


def test_heads_that_ulysses_cannot_deal_out():
    refuse_before_ranks(3, ["parallel.context: 3 does not divide the 4 attention heads", "ring"], dict(context=3, context_plugin="ulysses"))


def test_heads_that_tensor_and_ulysses_together_do_not_divide():
    refuse_before_ranks(8, ["4 does not divide the 2 attention heads"], dict(tensor=2, context=4, context_plugin="ulysses"))


def test_more_pipeline_stages_than_blocks():
    refuse_before_ranks(3, ["3 ranks", "2 blocks", "lower parallel.pipeline"], dict(pipeline=3, pipeline_plugin="pipeline"))
    refuse_before_ranks(2, ["2 ranks", "2 virtual_stages", "4 stages", "2 blocks"],
                        dict(pipeline=2, pipeline_plugin="pipeline", virtual_stages=2))


def test_experts_that_the_degree_does_not_divide():
    refuse_before_ranks(3, ["parallel.expert: 3 does not divide the 4 experts", "use one of"],
                        dict(expert=3, expert_plugin="expert"),
                        model=dict(plugin="dit_moe", depth=2, width=32, heads=4, patch=2, experts=4))


def test_an_expert_axis_for_a_model_without_experts():
    refuse_before_ranks(2, ["parallel.expert", "2", "the model has no experts"], dict(expert=2, expert_plugin="expert"))


def test_recomputation_of_more_blocks_than_there_are():
    refuse(1, ["recompute_every", "= 3", "2 blocks", "use at most 2"], dict(recompute="blocks", recompute_every=3))


def test_an_option_that_no_strategy_of_the_recipe_reads():
    refuse_before_ranks(2, ["parallel.sequence is read by nobody", "ddp"], dict(sequence=True, replicate=2))
    refuse(1, ["parallel.virtual_stages is read by nobody", "ddp"], dict(virtual_stages=2))
    refuse(1, ["parallel.virtual_stages is read by nobody", "none"], dict(virtual_stages=2, replicate=1))


def test_values_out_of_range():
    for option, value in (("tensor", 0), ("replicate", -1), ("timeout_s", 0), ("hang_s", -1)):
        refuse(1, [f"parallel.{option}", str(value)], {option: value})
    refuse(1, ["parallel.recompute", "none", "blocks", "attention"], dict(recompute="some"))


def test_a_device_that_is_not_there():
    path = recipe("cuda", {})
    arguments = [t.ditto, "train", str(path), *t.sets({"run.device": "cuda", "run.output": str(t.work / "never")})]
    if t.subprocess.run(arguments, capture_output=True, env=t.environment, timeout=t.patient(240)).returncode == 0:
        raise t.NotRun("this machine has a GPU")
    t.refused(2, ["run.device = \"cuda\", but", "run.device = \"cpu\""], *arguments[1:])
    t.refused(2, ["run.device = \"cuda\", but", "run.device = \"cpu\""], *arguments[1:], "--local-ranks", 2)


if __name__ == "__main__":
    t.main(globals())
