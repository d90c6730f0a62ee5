"""What no line of softvq, train, eval and the samples may do, read off the source itself.

Each rule is a function from a call, and what stands around it, to whether it is forbidden. So that
a rule is known to find what it is for, each is also given lines that break it.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted(
    path
    for folder in ("softvq", "train", "eval", "samples")
    for path in (ROOT / folder).rglob("*.py")
)
PICKLE_READER = "softvq/data/packages.py"  # its subclass of Unpickler refuses every name
RUNS_A_FILE = "softvq/hosts/report.py"  # `softvq swap-report file.py:Model`, which the user names
ASKS_THE_SYSTEM = "eval/memory.py"  # writes to /proc, where there are no files
# What a reader runs first draws with matplotlib's own line; a picture cut short is drawn again.
DRAWS_A_PICTURE = {
    f"samples/{name}.py" for name in ("plain_use", "read_report", "readout_hugging_face")
}
EXECUTING_MODULES = {"cloudpickle", "dill", "joblib", "marshal", "shelve", "commands", "pty"}


def dotted(node):
    """``a.b.c`` of a call's function; what is no name is ''."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def given(call, name):
    """The literal value of a keyword, or None."""
    for word in call.keywords:
        if word.arg == name and isinstance(word.value, ast.Constant):
            return word.value.value
    return None


def loads_a_pickle(call, _):
    name = dotted(call.func)
    if name == "torch.load":
        return given(call, "weights_only") is not True
    if name in ("np.load", "numpy.load"):
        return given(call, "allow_pickle") is not False
    if name.startswith("AutoModel") and name.endswith(".from_pretrained"):
        return given(call, "use_safetensors") is not True
    pickles = ("pickle.load", "pickle.loads", "pickle.Unpickler", "read_pickle", "torch.jit.load")
    return name.endswith(pickles) or given(call, "allow_pickle") is True


def runs_code(call, _):
    name = dotted(call.func)
    return name in ("eval", "exec", "compile", "__import__", "yaml.load", "runpy.run_path") or (
        name.endswith(("exec_module", "run_path", "run_module"))
    )


def trusts_what_comes(call, _):
    name = dotted(call.func)
    if name.startswith(("requests.", "httpx.", "session.")) and given(call, "verify") is False:
        return True
    return given(call, "trust_remote_code") is True or name.endswith(
        ("_create_unverified_context", "tempfile.mktemp")
    )


def uses_a_shell(call, _):
    name = dotted(call.func)
    if name in ("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"):
        return True
    if name.startswith(("subprocess.", "asyncio.create_subprocess")):
        strings = (ast.Constant, ast.JoinedStr)
        return given(call, "shell") is True or any(isinstance(a, strings) for a in call.args[:1])
    return given(call, "shell") is True or name.startswith("os.spawn")


def unpacks_by_itself(call, _):
    ways = (".extractall", "tar.extract", "archive.extract", "zip.extract", "unpack_archive")
    return dotted(call.func).endswith(ways)


def shows_markup(call, _):
    name = dotted(call.func)
    if name in ("jinja2.Environment", "Environment", "jinja2.Template", "Template"):
        return given(call, "autoescape") is not True
    return name.endswith("Markup")


WRITERS = (".write_text", ".write_bytes", ".savefig", "save_file", "pq.write_table", "np.save")


def opens_to_write(call):
    name = dotted(call.func)
    if name not in ("open", "io.open") and not name.endswith(".open"):
        return False
    modes = [given(call, "mode"), *(a.value for a in call.args if isinstance(a, ast.Constant))]
    return any(
        isinstance(m, str) and set(m) <= set("rwaxbt+") and set(m) & set("wax+") for m in modes
    )


def writes_in_place(call, around):
    """A file that is written to under its own name: killed half-way, it is taken for whole."""
    name = dotted(call.func)
    if not (
        name.endswith(WRITERS) or name in ("torch.save", "shutil.copy") or opens_to_write(call)
    ):
        return False
    guards = ("replacing", "folder_beside", "tempfile.TemporaryDirectory")
    held = {dotted(each.func) for each in around if isinstance(each, ast.Call)}
    to = next((a.id for a in call.args if isinstance(a, ast.Name)), "")
    return not (held & set(guards) or to in ("file", "held", "content"))


RULES = {
    "no pickle is executed": (loads_a_pickle, set()),
    "no code comes from data": (runs_code, {RUNS_A_FILE}),
    "nothing that comes is trusted": (trusts_what_comes, set()),
    "no shell": (uses_a_shell, set()),
    "no archive is unpacked by itself": (unpacks_by_itself, set()),
    "pages escape": (shows_markup, set()),
    "files are written whole or not at all": (writes_in_place, {ASKS_THE_SYSTEM, *DRAWS_A_PICTURE}),
}
BREACHES = [
    ("no pickle is executed", "torch.load(path)"),
    ("no pickle is executed", "torch.load(path, weights_only=False)"),
    ("no pickle is executed", "torch.load(path, weights_only=safe)"),
    ("no pickle is executed", "np.load(path)"),
    ("no pickle is executed", "np.load(path, allow_pickle=True)"),
    ("no pickle is executed", "pickle.loads(content)"),
    ("no pickle is executed", "pd.read_pickle(path)"),
    ("no pickle is executed", "torch.jit.load(path)"),
    ("no pickle is executed", "AutoModel.from_pretrained(folder)"),
    ("no code comes from data", "eval(text)"),
    ("no code comes from data", "spec.loader.exec_module(module)"),
    ("no code comes from data", "yaml.load(text)"),
    ("nothing that comes is trusted", "AutoModel.from_pretrained(x, trust_remote_code=True)"),
    ("nothing that comes is trusted", "requests.get(url, verify=False)"),
    ("nothing that comes is trusted", "tempfile.mktemp()"),
    ("no shell", "os.system(command)"),
    ("no shell", "subprocess.run(command, shell=True)"),
    ("no shell", "subprocess.run(f'npm pack {name}')"),
    ("no shell", "subprocess.getoutput(command)"),
    ("no archive is unpacked by itself", "tar.extractall(folder)"),
    ("no archive is unpacked by itself", "archive.extract(member, folder)"),
    ("no archive is unpacked by itself", "shutil.unpack_archive(path)"),
    ("pages escape", "jinja2.Environment(loader=loader)"),
    ("pages escape", "jinja2.Environment(autoescape=False)"),
    ("pages escape", "markupsafe.Markup(text)"),
    ("files are written whole or not at all", "path.write_text(text)"),
    ("files are written whole or not at all", "path.write_bytes(data)"),
    ("files are written whole or not at all", "open(path, 'w')"),
    ("files are written whole or not at all", "path.open(mode='ab')"),
    ("files are written whole or not at all", "save_file(tensors, path)"),
    ("files are written whole or not at all", "torch.save(state, path)"),
    ("files are written whole or not at all", "figure.savefig(path, dpi=150)"),
]


def find_breaches(rule, tree):
    """Lines that break a rule."""
    found = []

    def look(node, around):
        inner = around
        if isinstance(node, ast.With):
            inner = (*around, *(item.context_expr for item in node.items))
        if isinstance(node, ast.Call) and rule(node, around):
            found.append(node.lineno)
        for each in ast.iter_child_nodes(node):
            # What stands in the with line itself is not yet guarded by what follows it there.
            look(each, inner)

    look(tree, ())
    return found


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((each.name.split(".")[0], node.lineno) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0], node.lineno


@pytest.fixture(scope="module")
def trees():
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in FILES
    }


@pytest.mark.parametrize("name", list(RULES))
def test_no_line_breaks_the_rule(trees, name):
    rule, excepted = RULES[name]
    found = {file: find_breaches(rule, tree) for file, tree in trees.items()}
    assert {file for file, lines in found.items() if lines} == excepted & {*found}, found


@pytest.mark.parametrize(("name", "line"), BREACHES, ids=lambda value: value)
def test_the_rule_finds_what_it_is_for(name, line):
    rule, _ = RULES[name]
    assert find_breaches(rule, ast.parse(line)) == [1]


@pytest.mark.parametrize(
    "text",
    [
        "with replacing(path) as beside:\n    beside.write_text(text)",
        "with replacing(path) as beside, open(beside, 'wb') as file:\n    file.write(b'')",
        "open(path)",
        "open(path, 'rb')",
        "path.open('r', encoding='utf-8')",
        "figure.savefig(file, format='png')",
    ],
)
def test_writing_by_the_rule_is_allowed(text):
    assert find_breaches(writes_in_place, ast.parse(text)) == []


def test_nothing_is_imported_that_executes_what_it_reads(trees):
    found = {
        (file, module, line)
        for file, tree in trees.items()
        for module, line in imported(tree)
        if module in EXECUTING_MODULES
    }
    assert found == set()


def test_pickle_is_imported_to_refuse_it_alone(trees):
    found = {file for file, tree in trees.items() if "pickle" in dict(imported(tree))}
    assert found == {PICKLE_READER, "softvq/data/published.py"}  # the latter names its error


def test_the_one_reader_of_pickles_says_what_it_admits(trees):
    readers = [
        (file, {each.name for each in node.body if isinstance(each, ast.FunctionDef)})
        for file, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and "Unpickler" in " ".join(map(dotted, node.bases))
    ]
    assert readers == [(PICKLE_READER, {"find_class"})]


def test_templates_trust_what_we_drew_ourselves_alone():
    """A figure's SVG; everything else in a page is escaped."""
    trusted = [
        (path.name, line.strip())
        for path in ROOT.rglob("*.j2")
        if ".venv" not in path.parts
        for line in path.read_text(encoding="utf-8").splitlines()
        if "safe" in line.replace("|", " ").split() or "autoescape" in line
    ]
    assert trusted == [("report.html.j2", "{{ chart.svg | safe }}")]
