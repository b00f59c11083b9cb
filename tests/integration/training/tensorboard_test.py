"""TensorBoard itself reads what a run and its resume write.

Claim (machine): What a run writes is what the real TensorBoard reads.
"""

import io
import os
import subprocess
import tempfile

from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as PluginAccumulator
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.util import tensor_util

temporary = tempfile.TemporaryDirectory()
folder = temporary.name
subprocess.run(
    [os.environ["DITTO_BUILD_DIR"] + "/tests/ditto_unit_tests", "--source-file=*/tensorboard_test.cpp", "--no-path-filenames",
     "--test-case=a run and its resume*"],
    env=os.environ | {"DITTO_KEEP_EVENTS": folder}, check=True, stdout=subprocess.DEVNULL)

events = EventAccumulator(folder)
events.Reload()
tags = events.Tags()
for tag in ("train/loss", "train/grad_norm", "train/lr", "train/samples_per_s", "train/tflops", "loss/mse", "validation/loss"):
    assert tag in tags["scalars"], (tag, tags)

# The resume from step 4 wrote steps 5 and 6 again: the old ones are purged, and every step is there once.
losses = [(event.step, event.value) for event in events.Scalars("train/loss")]
assert losses == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0), (5, 2.0), (6, 2.0), (7, 2.0), (8, 2.0)], losses
assert [(event.step, event.value) for event in events.Scalars("validation/loss")] == [(8, 0.25)]

images = events.Images("samples")
assert [image.step for image in images] == [8], images
picture = Image.open(io.BytesIO(images[0].encoded_image_string))
assert (images[0].width, images[0].height) == picture.size == (3, 2)
assert list(picture.tobytes()) == [0, 50, 100, 150, 200, 250]

texts = PluginAccumulator(folder)
texts.Reload()
recipe = texts.Tensors("recipe")
assert [one.step for one in recipe] == [0]
assert tensor_util.make_ndarray(recipe[0].tensor_proto)[0].decode().startswith("    [run]\n    name")
assert texts.SummaryMetadata("recipe").plugin_data.plugin_name == "text"
# The tab HPARAMS.
start = texts.SummaryMetadata("_hparams_/session_start_info").plugin_data
options = hparams.parse_session_start_info_plugin_data(start.content).hparams
assert start.plugin_name == hparams.PLUGIN_NAME and len(options) == 5, options
assert options["run.steps"].number_value == 8 and options["run.name"].string_value == "x" and options["run.deterministic"].bool_value
print("TensorBoard reads", len(losses), "steps, a sheet and the recipe")
