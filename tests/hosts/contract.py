"""What every swapped host owes its user, as one function that tests of all hosts call."""

import copy
import subprocess
import sys

import torch
from torch import Tensor

from softvq import Temperature, attach, restore, swap
from softvq.hosts.tree import leaves

STEPS = 20

# Within the reach of a dozen codes that may lie far from the rows.
COOL = Temperature(gradient=0.4, prototypes=0.1, anneal_steps=100, warmup_share=0.1)


def shape_of(tree):
    """Leaves by path: type, dtype, rank or shape."""
    return {
        path: (leaf.dtype, tuple(leaf.shape)) if isinstance(leaf, Tensor) else type(leaf)
        for path, leaf in leaves(tree).items()
    }


def equal_trees(one, other):
    """Whether two results are the same to the last bit."""
    first, second = leaves(one), leaves(other)
    return first.keys() == second.keys() and all(
        torch.equal(leaf, second[path]) if isinstance(leaf, Tensor) else leaf == second[path]
        for path, leaf in first.items()
    )


def check_swap(model, *, quantizer, z, calls=({},)):
    """Swap, and check that answers, keys and attributes are as before.

    Args:
        model: In eval mode.
        quantizer: Gives the quantizer of a model.
        z: An input of it.
        calls: Keywords of calls to compare.
    """
    untouched = copy.deepcopy(model)
    host, kind = quantizer(model), type(quantizer(model))
    with torch.no_grad():
        hard = [host(z, **call) for call in calls]
        trained = quantizer(copy.deepcopy(model).train())(z)
    report = swap(model, temperature=COOL)
    assert quantizer(model) is host
    assert isinstance(host, kind)
    with torch.no_grad():
        for call, before in zip(calls, hard, strict=True):
            assert equal_trees(host(z, **call), before)
        after = copy.deepcopy(host).train()(z)
    assert shape_of(after) == shape_of(trained)
    assert type(after) is type(trained)
    model.load_state_dict(untouched.state_dict(), strict=True)
    return report


def train_swapped(model, loss_of_batch, *, optimizer, steps=STEPS, **options):
    """A host's loop; hard losses before and after."""
    updates = attach(model, optimizer, **options)

    def hard():
        model.eval()
        with torch.no_grad():
            value = float(loss_of_batch(model))
        model.train()
        return value

    before = hard()
    for _ in range(steps):
        loss = loss_of_batch(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all(int(each.updates) == steps for each in updates.quantizers)
    return before, hard()


def check_restore(model, untouched, *, quantizer, z):
    """Restore, and check that hard answers, classes and keys are those of a host."""
    model.eval()
    with torch.no_grad():
        hard = quantizer(model)(z)
    restore(model)
    with torch.no_grad():
        assert equal_trees(quantizer(model)(z), hard)
    assert type(quantizer(model)) is type(quantizer(untouched))
    assert list(model.state_dict()) == list(untouched.state_dict())
    names = [name for name, _ in untouched.named_parameters()]
    assert [name for name, _ in model.named_parameters()] == names
    assert quantizer(model).__dict__.keys() == quantizer(untouched).__dict__.keys()
    untouched.load_state_dict(model.state_dict(), strict=True)
    untouched.eval()
    with torch.no_grad():
        assert equal_trees(quantizer(untouched)(z), hard)


def run_without_softvq(script, *arguments):
    """Run a script in a process in which softvq cannot be imported."""
    # As many threads as here, where sums are to be equal bit for bit.
    threads = f"import torch; torch.set_num_threads({torch.get_num_threads()})\n"
    blocked = f"import sys; sys.modules['softvq'] = None\n{threads}"
    subprocess.run(
        [sys.executable, "-c", blocked + script, *map(str, arguments)], check=True, text=True
    )
