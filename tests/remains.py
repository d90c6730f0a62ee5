"""What a process leaves that is killed while it writes a file."""


def leave_remains(path, *, locked=True):
    """The hidden folder of a dead writer of ``path``."""
    folder = path.with_name(f".{path.name}.0a1b2c3d.partial")
    folder.mkdir(parents=True)
    if locked:
        (folder / "lock").touch()
        (folder / "content.partial").write_bytes(b"half of it")
        (folder / ".tmpAbCdEf").write_bytes(b"as safetensors has it")
    return folder


def hidden(folder):
    """Names of what is hidden in a folder: remains, and what is being written."""
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))
