"""`encode` and `decode` as ONNX files (extra `onnx`)."""

import json
from pathlib import Path

import onnx
import torch

from softvq.export.programs import NAMES, trace_graphs
from softvq.files import replacing
from softvq.models.vqvae import VQVAE

ENDS = {"encode": ("images", "indices"), "decode": ("indices", "images")}
AXES = {
    "images": ("batch", "channels", "height", "width"),
    "indices": ("batch", "grid_height", "grid_width"),
}


def export_onnx(model: VQVAE, folder: Path | str) -> Path:
    """Write ``encode.onnx`` and ``decode.onnx``; batch, height and width are free. See FORMAT.md.

    Args:
        model: In eval mode, with a quantizer of softvq. The files compute in float32.
        folder: To write to.

    Returns:
        The folder.

    Raises:
        ValueError: As `softvq.export.programs.trace_graphs`, or for more than 2 GiB of weights.
    """
    graphs, folder = trace_graphs(model), Path(folder)
    for name in NAMES:
        taken, given = ENDS[name]
        program = torch.onnx.export(
            getattr(graphs, name),
            input_names=[taken],
            output_names=[given],
            dynamo=True,
            verbose=False,
        )
        assert program is not None, "torch.onnx.export with dynamo=True returns the program"
        written = _clean(program.model_proto, facts=graphs.facts)
        onnx.checker.check_model(written)
        with replacing(folder / f"{name}.onnx") as beside:
            beside.write_bytes(written.SerializeToString(deterministic=True))
    return folder


def _clean(program: onnx.ModelProto, *, facts: dict[str, object]) -> onnx.ModelProto:
    """Name the axes, say what it is; drop traces of the source, which differ from run to run."""
    graph = program.graph
    for part in (*graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        del part.metadata_props[:]
    del graph.metadata_props[:]
    del program.metadata_props[:]
    del graph.value_info[:]  # shapes in between, told in symbols that the tracer made up
    for end in (*graph.input, *graph.output):
        axes = zip(end.type.tensor_type.shape.dim, AXES[end.name], strict=True)
        for axis, name in axes:
            if not axis.HasField("dim_value"):
                axis.dim_param = name
    program.metadata_props.add(key="softvq", value=json.dumps(facts))
    program.producer_name = f"softvq, {program.producer_name}"
    return program
