import json

import pytest
import torch
from torch import nn

from softvq import SoftVQ
from softvq.export.programs import (
    EncodeGraph,
    Graphs,
    export_programs,
    find_first_equal,
    trace_graphs,
)
from softvq.models import VQVAE
from tests.export.graphs import ONE_CODE_A_SIDE, SIZES, TIES, make_images, make_model


@pytest.fixture(scope="module")
def graph_model():
    return make_model()


@pytest.fixture(scope="module")
def loaded(graph_model, tmp_path_factory):
    folder = export_programs(graph_model, tmp_path_factory.mktemp("programs"))
    told = {"softvq.json": ""}
    encode = torch.export.load(folder / "encode.pt2", extra_files=told)
    decode = torch.export.load(folder / "decode.pt2")
    return Graphs(encode, decode, json.loads(told["softvq.json"]))


@pytest.mark.compiled
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_loaded_program_gives_the_models_answers_at_any_size(graph_model, loaded, size):
    images = make_images(size)
    indices = loaded.encode.module()(images)
    assert torch.equal(indices, graph_model.encode(images))
    torch.testing.assert_close(loaded.decode.module()(indices), graph_model.decode(indices))


@pytest.mark.compiled
def test_a_program_tells_what_it_is(graph_model, loaded):
    assert (loaded.facts["num_codes"], loaded.facts["downsampling"]) == (19, 4)
    assert loaded.facts["image_range"] == [-1, 1]


@pytest.mark.compiled
@pytest.mark.parametrize("value", [-1, 19], ids=str)
def test_a_program_refuses_what_is_no_code(loaded, value):
    with pytest.raises(IndexError, match="out of bounds"):
        loaded.decode.module()(torch.full((2, 3, 3), value))


@pytest.mark.compiled
def test_a_program_holds_plain_operators_alone(loaded):
    for program in (loaded.encode, loaded.decode):
        graphs = [part.graph for part in program.graph_module.modules() if hasattr(part, "graph")]
        targets = {node.target for graph in graphs for node in graph.nodes}
        names = {str(each) for each in targets if isinstance(each, torch._ops.OpOverload)}
        assert names
        assert all(name.startswith("aten.") for name in names)


@pytest.mark.parametrize("size", SIZES + ONE_CODE_A_SIDE, ids=str)
def test_the_graph_before_it_is_traced_is_the_models_encode(graph_model, size):
    images = make_images(size)
    assert torch.equal(EncodeGraph(graph_model)(images), graph_model.encode(images))


def test_pictures_reach_many_codes_and_no_second_of_two_equal_ones(graph_model):
    found = set(torch.cat([graph_model.encode(make_images(s)).flatten() for s in SIZES]).tolist())
    assert len(found) > 8
    assert not found & {12, 13, 16, 17}


@pytest.mark.parametrize(("row", "index"), TIES, ids=str)
def test_ties_go_to_the_lowest_code(row, index):
    model = make_model()
    model.encoder[-1].weight.zero_()
    model.encoder[-1].bias.copy_(torch.tensor(row))
    images = make_images((2, 3, 9, 9))
    assert EncodeGraph(model)(images).unique().tolist() == [index]
    assert model.encode(images).unique().tolist() == [index]


def test_the_first_of_equal_codes():
    codes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [-0.0, 1.0], [3.0, 1.0]])
    assert find_first_equal(codes).tolist() == [0, 1, 0, 1, 1, 5]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: model.train(), r"is in training mode.*Call model.eval\(\)"),
        (lambda model: nn.Linear(1, 1), r"must be a softvq.models.VQVAE.*got Linear"),
        (
            lambda model: VQVAE(SoftVQ(8, 64, layout="channels_first")).eval(),
            "was never placed on data",
        ),
    ],
    ids=["training", "kind", "start"],
)
def test_what_gives_no_repeatable_graph_is_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        trace_graphs(change(make_model()))
    with pytest.raises(ValueError, match=message):
        export_programs(change(make_model()), tmp_path / "out")
    assert not (tmp_path / "out").exists()
