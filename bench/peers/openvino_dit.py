"""diffusers' DiTTransformer2DModel compiled by OpenVINO for the CPU, as a peer of `ditto bench sample`.

Shapes are static: a model of its own for each count of rows. It is asked to compute in bf16, and says what it does: on a processor
that it knows no bf16 for it takes another precision without a word.

The sines and cosines of the times come from diffusers' own module, in fp32 as in PyTorch, and go in in the place of the times:
inside, OpenVINO takes their angles in bf16 too, which has not all whole numbers above 256, and the output is up to four times as
far from fp32's as PyTorch's in bf16 is.
"""
import warnings

import openvino
import torch

TIMES = 1.5  # the bound of OpenVINO's error over PyTorch's own, of the same model in bf16
MOST = 2.0**-5  # and of the error itself: the norm of the difference over that of fp32's output


class Forward(torch.nn.Module):
    """The model as a function of three tensors, as the conversion wants it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, waves, labels):
        return self.model(x, timestep=waves, class_labels=labels, return_dict=False)[0]


def example(rows):
    """Noise, and another time and class in each row."""
    x = torch.randn(rows, 4, 32, 32, generator=torch.Generator().manual_seed(rows))
    return x, torch.arange(rows) * 997 // (rows - 1) + 1, torch.arange(rows) * 1000 // (rows - 1)


def forward(model, x, t, labels):
    return model(x, timestep=t, class_labels=labels).sample


def errors(outputs, right):
    """Of each row."""
    outputs, right = outputs.float().flatten(1), right.flatten(1)
    return (outputs - right).norm(dim=1) / right.norm(dim=1)


def converted(model, waves):
    x, t, labels = example(2)
    embeddings = [block.norm1.emb for block in model.transformer_blocks]
    for one in embeddings:
        one.time_proj = torch.nn.Identity()
    try:
        with warnings.catch_warnings(action="ignore", category=torch.jit.TracerWarning):  # of sizes, which do not change
            return openvino.convert_model(Forward(model), example_input=(x, waves(t), labels),
                                          input=[[-1, 4, 32, 32], [-1, waves.num_channels], [-1]])
    finally:
        for one in embeddings:
            one.time_proj = waves


class Static:
    """It for one count of rows."""

    def __init__(self, model, waves, rows, threads):
        model.reshape({port: [rows, *list(port.partial_shape)[1:]] for port in model.inputs})
        settings = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1,
                    "PERFORMANCE_HINT": "LATENCY"}
        self.compiled = openvino.Core().compile_model(model, "CPU", settings)
        self.request = self.compiled.create_infer_request()
        self.waves = waves

    def __call__(self, x, t, labels):
        """The next call writes over what it returns."""
        given = [x.numpy(), self.waves(t).numpy(), labels.numpy()]
        return torch.from_numpy(self.request.infer(given, share_inputs=True, share_outputs=True)[0])

    def precision(self):
        return self.compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()

    def threads(self):
        return self.compiled.get_property("INFERENCE_NUM_THREADS")

    def products(self):
        """The precision of each of its linear layers."""
        told = [node.get_rt_info() for node in self.compiled.get_runtime_model().get_ordered_ops()]
        return [one["runtimePrecision"].astype(str) for one in told if one["layerType"].astype(str) == "FullyConnected"]


class Models:
    """For each of these counts of rows one. The model in fp32 that they are of is in bf16 afterwards."""

    @torch.no_grad()
    def __init__(self, model, counts, threads):
        waves = model.transformer_blocks[0].norm1.emb.time_proj
        general = converted(model, waves)
        self.of = {rows: Static(general, waves, rows, threads) for rows in counts}
        right = {rows: forward(model, *example(rows)) for rows in counts}
        del general
        model.to(torch.bfloat16)
        self.error, self.peer_error = 0, 0
        for rows, one in self.of.items():
            x, t, labels = example(rows)
            ours = errors(one(x, t, labels), right[rows])
            theirs = errors(forward(model, x.bfloat16(), t, labels), right[rows])
            if not bool((ours <= (TIMES * theirs).clamp(max=MOST)).all()):
                raise SystemExit(f"sample: of {rows} rows OpenVINO's output is {ours.tolist()} from PyTorch's in fp32, PyTorch's own in "
                                 f"bf16 {theirs.tolist()}; expected at most {TIMES} times that, and {MOST}: not the same model")
            self.error, self.peer_error = max(self.error, ours.max().item()), max(self.peer_error, theirs.max().item())
