"""Install the built wheel, and then the sdist, into an empty environment and use them there.

    python .ci/check_dist.py dist/ [--torch torch==2.5.1]

Only what the core depends on is installed beside softvq. Builds of torch for the CPU alone are
smaller and do as well.
"""

import argparse
import subprocess
import sys
import tempfile
import textwrap
import venv
from pathlib import Path

USE = """
    import importlib.metadata, shutil, sys, tempfile
    from pathlib import Path

    import torch

    import softvq
    from softvq.functional import soft_assign
    from softvq.functional.backends import native
    from softvq.models import VQVAE, load_model, save_model

    home = Path(softvq.__file__).parent
    assert home.is_relative_to(sys.prefix), f"softvq comes from {home}"
    assert softvq.__version__ == importlib.metadata.version("softvq")
    for name in ("py.typed", "export/FORMAT.md", "explain/page.html.j2"):
        assert (home / name).is_file(), f"{name} is not installed"
    z, codebook = torch.randn(300, 8), torch.randn(200, 8)
    if any(map(shutil.which, ("cc", "gcc", "clang"))):
        reason = native.unavailable(z.device, z.dtype)
        assert reason is None, f"the native back end cannot run because {reason}"
        one = soft_assign(z, codebook, temperature=0.5, backend="native")
        other = soft_assign(z, codebook, temperature=0.5, backend="reference")
        torch.testing.assert_close(one.mean, other.mean)
        assert torch.equal(one.indices, other.indices)
    model = VQVAE(softvq.SoftVQ(16, 64, layout="channels_first"))
    optimizer = torch.optim.Adam(model.parameters())
    softvq.attach(model, optimizer)
    images = torch.rand(2, 3, 32, 32) * 2 - 1
    out = model(images)
    (out.quantizer.loss + (out.reconstruction - images).square().mean()).backward()
    optimizer.step()
    folder = Path(tempfile.mkdtemp())
    save_model(model.eval(), folder / "model.safetensors")
    softvq.export_codebook(model, folder / "codebook.safetensors")
    softvq.export_tokens(model, images, folder / "tokens")
    again = load_model(folder / "model.safetensors").eval()
    assert torch.equal(again.encode(images), model.encode(images))
    print(folder)
"""


def run(*words: str | Path, folder: Path, cache: Path) -> str:
    """Run a command elsewhere than in the source tree, with a cache folder of its own."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "SOFTVQ_CACHE": str(cache)}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words[:4]))} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout.strip()


def check(archive: Path, bin_folder: Path, folder: Path) -> None:
    """Install one archive in the place of what is there, and use it."""
    python = bin_folder / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    subprocess.run([*pip, "--force-reinstall", "--no-deps", archive.resolve()], check=True)
    subprocess.run([*pip, archive.resolve()], check=True)
    use = folder / "use.py"
    use.write_text(textwrap.dedent(USE), encoding="utf-8")
    made = run(python, use, folder=folder, cache=folder / archive.suffix)
    told = run(bin_folder / "softvq", "info", f"{made}/tokens", folder=folder, cache=folder)
    print(f"{archive.name}: installed, used, `softvq info` says: {told.splitlines()[0]}")


def main() -> None:
    """Check every archive of a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dist", type=Path)
    parser.add_argument("--torch", default="torch", help="the requirement for torch")
    parser.add_argument("--folder", type=Path, help="work here, and keep the environment")
    args = parser.parse_args()
    archives = [*args.dist.glob("*.whl"), *args.dist.glob("*.tar.gz")]
    if len(archives) != 2:
        sys.exit(f"dist {args.dist} must hold one wheel and one sdist; it holds {archives}.")
    with tempfile.TemporaryDirectory() as name:
        folder = (args.folder or Path(name)).resolve()
        if not (folder / "venv").exists():
            venv.create(folder / "venv", with_pip=True)
        bin_folder = folder / "venv" / "bin"
        pip = [bin_folder / "python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--disable-pip-version-check", args.torch], check=True)
        for archive in archives:
            check(archive, bin_folder, folder)


if __name__ == "__main__":
    main()
