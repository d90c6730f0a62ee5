"""What `import softvq` brings along, and what it promises: `public_api.txt` beside this file.

Changing the public names or their arguments is a deliberate edit: write the file anew with
`python -m tests.test_imports` and review its difference.
"""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

API_FILE = Path(__file__).with_name("public_api.txt")
PACKAGES = (
    "softvq",
    "softvq.export",
    "softvq.hosts",
    "softvq.models",
    "softvq.measures",
    "softvq.functional",
)
OPTIONAL = (
    "PIL",
    "accelerate",
    "datasets",
    "huggingface_hub",
    "beartype",
    "diffusers",
    "jinja2",
    "lightning",
    "matplotlib",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "pandas",
    "platformdirs",
    "pyarrow",
    "pydantic",
    "pytorch_lightning",
    "rich",
    "lpips",
    "sgp4",
    "skimage",
    "sklearn",
    "taming",
    "tensorboard",
    "timm",
    "torch_fidelity",
    "torchmetrics",
    "torchvision",
    "transformers",
    "triton",
    "tyro",
    "vector_quantize_pytorch",
    "train",
    "eval",
    "tests",
)


def imported_by(statement):
    """Top-level names of all modules that a fresh interpreter holds after a statement."""
    report = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{statement}; {report}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def with_softvq():
    return imported_by("import softvq, softvq.export, softvq.hosts, softvq.models, softvq.measures")


@pytest.mark.parametrize("name", OPTIONAL)
def test_softvq_imports_no_optional_package(with_softvq, name):
    assert "softvq" in with_softvq
    assert name not in with_softvq


def test_softvq_imports_numpy_only_where_torch_does(with_softvq):
    assert ("numpy" in with_softvq) <= ("numpy" in imported_by("import torch, safetensors.torch"))


def describe_parameter(parameter):
    """As in a signature, less the annotation, whose text differs between Python versions."""
    return str(parameter.replace(annotation=inspect.Parameter.empty))


def describe_signature(function):
    parameters = list(inspect.signature(function).parameters.values())
    texts, starred = [], False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            texts.append("*")
        starred |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        texts.append(describe_parameter(parameter))
    return f"({', '.join(texts)})"


def describe_class(name, kind):
    """The class and its public members: methods with arguments, what is no argument by name."""
    if issubclass(kind, Warning):  # takes what its base takes, which has no signature
        return [f"class {name}({kind.__base__.__name__})"]
    lines = [f"class {name}{describe_signature(kind)}"]
    own = {
        key for base in kind.__mro__ if base.__module__.startswith("softvq") for key in vars(base)
    }
    for key in sorted(own):
        if key.startswith("_") or key in inspect.signature(kind).parameters:
            continue
        member = inspect.getattr_static(kind, key)
        if isinstance(member, classmethod | staticmethod):
            member = member.__func__
        is_method = inspect.isfunction(member)
        lines.append(f"    {key}{describe_signature(member) if is_method else ''}")
    return lines


def describe_api():
    """The public names of each package with their arguments and defaults."""
    lines = []
    for package in PACKAGES:
        module = importlib.import_module(package)
        lines += [f"# {package}", ""]
        for name in sorted(module.__all__):
            value = getattr(module, name)
            if inspect.isclass(value):
                lines += describe_class(name, value)
            else:
                lines.append(f"def {name}{describe_signature(value)}")
        lines.append("")
    return "\n".join(lines)


@pytest.mark.bad_input  # the run-time shape checks wrap what is described here
def test_the_public_api_is_the_stored_one():
    assert describe_api() == API_FILE.read_text(encoding="utf-8"), __doc__


@pytest.mark.parametrize("package", PACKAGES)
def test_all_that_is_promised_is_there_in_order(package):
    module = importlib.import_module(package)
    names = module.__all__
    assert [name for name in names if not hasattr(module, name)] == []
    assert len(set(names)) == len(names)


if __name__ == "__main__":
    API_FILE.write_text(describe_api(), encoding="utf-8")
