import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper

from softvq.export.onnx import export_onnx
from tests.export.graphs import ONE_CODE_A_SIDE, SIZES, TIES, make_images, make_model

WORST_PIXEL = 1e-4


@pytest.fixture(scope="module")
def graph_model():
    return make_model()


@pytest.fixture(scope="module")
def folder(graph_model, tmp_path_factory):
    return export_onnx(graph_model, tmp_path_factory.mktemp("onnx"))


@pytest.fixture(scope="module")
def sessions(folder):
    return {name: open_session(folder / f"{name}.onnx") for name in ("encode", "decode")}


def open_session(source):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # it prints what it raises
    return onnxruntime.InferenceSession(source, options)


def run(session, value):
    (result,) = session.run(None, {session.get_inputs()[0].name: value.numpy()})
    return torch.from_numpy(result)


@pytest.mark.compiled
@pytest.mark.parametrize("size", SIZES + ONE_CODE_A_SIDE, ids=str)
def test_onnxruntime_gives_the_indices_and_pictures_of_the_model(graph_model, sessions, size):
    images = make_images(size)
    expected = graph_model.encode(images)
    assert torch.equal(run(sessions["encode"], images), expected)
    pictures = run(sessions["decode"], expected)
    assert pictures.shape == graph_model.decode(expected).shape
    assert (pictures - graph_model.decode(expected)).abs().max() <= WORST_PIXEL


@pytest.mark.compiled
@pytest.mark.parametrize(("row", "index"), TIES, ids=str)
def test_onnxruntime_gives_ties_to_the_lowest_code(folder, row, index):
    program = onnx.load(folder / "encode.onnx")
    held = {each.name: each for each in program.graph.initializer}
    last = "model.encoder.6"
    weight = numpy_helper.to_array(held[f"{last}.weight"])
    for name, value in ((f"{last}.weight", 0 * weight), (f"{last}.bias", np.float32(row))):
        held[name].CopyFrom(numpy_helper.from_array(value, name))
    session = open_session(program.SerializeToString())
    assert run(session, make_images((2, 3, 9, 9))).unique().tolist() == [index]


@pytest.mark.compiled
def test_the_argmax_is_told_to_take_the_first(folder):
    nodes = onnx.load(folder / "encode.onnx").graph.node
    (argmax,) = [node for node in nodes if node.op_type == "ArgMax"]
    assert {each.name: each.i for each in argmax.attribute}["select_last_index"] == 0


@pytest.mark.compiled
@pytest.mark.parametrize("value", [-1, 19], ids=str)
def test_onnxruntime_refuses_what_is_no_code(sessions, value):
    with pytest.raises(Exception, match=r"invalid index|out of (data )?bounds"):
        run(sessions["decode"], torch.full((2, 3, 3), value))


@pytest.mark.compiled
def test_files_name_their_axes_and_what_they_are(sessions, graph_model):
    encode, decode = sessions["encode"], sessions["decode"]
    assert encode.get_inputs()[0].shape == ["batch", 3, "height", "width"]
    assert encode.get_outputs()[0].shape == ["batch", "grid_height", "grid_width"]
    assert decode.get_inputs()[0].shape == ["batch", "grid_height", "grid_width"]
    assert decode.get_outputs()[0].shape == ["batch", 3, "height", "width"]
    facts = json.loads(encode.get_modelmeta().custom_metadata_map["softvq"])
    assert (facts["format"], facts["num_codes"], facts["dim"]) == ("softvq-graph", 19, 4)


@pytest.mark.compiled
def test_a_file_holds_no_trace_of_the_machine(folder):
    for path in folder.iterdir():
        program = onnx.load(path)
        assert not any(node.metadata_props for node in program.graph.node)
        assert b".py" not in path.read_bytes()
