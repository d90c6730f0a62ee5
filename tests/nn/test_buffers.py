import pytest
import torch
from torch import nn

from softvq.nn.buffers import apply_keeping_dtypes


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), 1 / 3))
        self.register_buffer("mean", torch.full((1,), 1 / 3))
        self.register_buffer("steps", torch.tensor(7))
        self.register_buffer("absent", None)

    def _apply(self, fn, recurse=True):
        apply_keeping_dtypes(self, lambda: super(Counter, self)._apply(fn, recurse))
        return self


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_buffers_keep_dtype_and_digits_while_parameters_follow(dtype):
    counter = Counter().to(dtype)
    assert counter.weight.dtype == dtype
    assert counter.mean.dtype == torch.float32
    assert counter.mean.item() == torch.tensor(1 / 3).item()
    assert counter.steps.dtype == torch.int64
    assert counter.absent is None


def test_buffers_follow_the_device():
    counter = Counter().to("meta", torch.float16)
    assert counter.mean.device.type == "meta"
    assert counter.mean.dtype == torch.float32


def test_cast_of_a_whole_model_reaches_inner_modules():
    model = nn.Sequential(nn.Linear(2, 2), Counter()).half()
    assert [each.dtype for each in (model[0].weight, model[1].mean)] == [
        torch.float16,
        torch.float32,
    ]
