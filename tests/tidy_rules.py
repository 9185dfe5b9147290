"""The house rules that no linter knows, each a function from one file to its violations.

A violation is a line number and a sentence. ``test_tidy.py`` applies the rules to the project
and shows, on planted examples, that each of them can fail.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from rmqlog.commitlog_format import layout

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70

#: From the bottom up: a package may import itself and what stands before it.
LAYERS = ("commitlog_format", "writer", "spark_datasource", "api")
#: Outside modules that a layer must not know.
FOREIGN_MODULES = {
    "commitlog_format": {"pyspark", "time", "typer", "rich"},
    "writer": {"pyspark", "typer", "rich"},
    "spark_datasource": {"typer", "rich"},
    "api": set[str](),
}

#: What runs or rebuilds objects from the bytes that it is given.
UNSAFE_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "code"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__", "yaml.load", "yaml.unsafe_load"}

#: The one file of each package that maps memory.
MAPPING_FILES = {"commitlog_format/mapped_windows.py", "writer/posix.py"}

#: Opens windows and hands them on, unread.
WINDOW_FILE = "commitlog_format/segment.py"
WINDOW_DATA = re.compile(r"window(\(.*\))?\.data$", re.DOTALL)
#: Calls that read a window within ``intact`` themselves, or do not read it.
INTACT_CALLS = {"decode", "decode_batches", "find_malformed", "first_malformed", "intact", "len"}
#: Functions that are called within ``intact``.
INTACT_FUNCTIONS = {"_collect", "_first_half_written"}

#: ``writer/posix.py`` packs the kernel's ``struct flock``, which is no layout of the store.
LAYOUT_FILE = "commitlog_format/layout.py"
STRUCT_FILES = {LAYOUT_FILE, "writer/posix.py"}

DURABLE_FILE = "writer/posix.py"
#: Run by developers, not installed, and never near a store.
BUILD_TOOLS = {"spark_datasource/bridge/build.py"}
DURABLE_CALLS = {
    "chmod", "copy_file_range", "fallocate", "fdatasync", "fsync", "ftruncate", "link", "makedirs",
    "mkdir", "posix_fallocate", "pwrite", "pwritev", "remove", "removedirs", "rename", "renames",
    "replace", "rmdir", "sendfile", "symlink", "sync", "truncate", "unlink", "utime", "write",
    "writev",
}
READING_CALLS_OF_SHUTIL = {"disk_usage", "which"}
WRITING_METHODS = {"write_bytes", "write_text", "touch", "hardlink_to", "symlink_to"}

#: Numbers that mark the store's bytes; small ones are too common to be told apart.
MAGIC_NUMBERS = {
    value
    for name, value in vars(layout).items()
    if "MAGIC" in name and isinstance(value, int) and abs(value) > 0xFFFF
}
#: A struct format or a dtype in the byte order of the store's files.
BYTE_LAYOUT = re.compile(r">(\d*[xcbBhHiIlLqQfdsp?]|[iuf][1248])+")

# The brackets keep these patterns from matching themselves.
MACHINE_WORDS = {
    "a path of one machine": re.compile(
        r"(?<![\w.}-])[/](home|root|Users|work|tmp|mnt|opt/homebrew)[/]\w|[A-Z]:\\\\?Users"
    ),
    "a package registry's host": re.compile(
        r"pypi[.]org|pythonhosted[.]org|repo1?[.]maven|maven[.]org|registry[.]npm|jfrog[.]io"
    ),
    "a package index": re.compile(r"--(extra-)?index[-]url|--find[-]links|PIP_\w*INDEX[_]URL"),
}

Violations = Iterator[tuple[int, str]]


@dataclass(frozen=True)
class SourceFile:
    """A Python file by its path from the project's root, with ``/``."""

    path: str
    text: str

    @property
    def package(self) -> str:
        """The top folder: ``writer`` for ``writer/posix.py``."""
        return self.path.split("/")[0]

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text, self.path)


def imported_modules(file: SourceFile) -> Violations:
    """Line and full name of everything imported, at whatever depth; relative ones resolved."""
    here = ["rmqlog", *file.path.removesuffix(".py").split("/")]
    if file.package == "api":
        del here[1]
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level] if node.level else []
            prefix = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            yield from ((node.lineno, f"{prefix}.{alias.name}") for alias in node.names)


def called_names(file: SourceFile) -> Iterator[tuple[ast.Call, str]]:
    """Every call and the dotted name that it calls: ``os.rename``."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def imports_point_down(file: SourceFile) -> Violations:
    """api -> spark_datasource -> writer -> commitlog_format, and no foreign modules below."""
    below = LAYERS[: LAYERS.index(file.package) + 1]
    for line, name in imported_modules(file):
        top, *rest = name.split(".")
        if top == "rmqlog":
            layer = rest[0] if rest and rest[0] in LAYERS else "api"
            if layer not in below:
                yield line, f"{file.package} imports {name}, which is above it"
        elif top in LAYERS:
            yield line, f"imports {name} by its folder: say rmqlog.{top}"
        elif top in FOREIGN_MODULES[file.package]:
            yield line, f"{file.package} must not know {top}"


def runs_nothing_it_reads(file: SourceFile) -> Violations:
    """No pickle, eval, exec or yaml.load. Hooks such as ``__reduce__`` are fine."""
    for line, name in imported_modules(file):
        if UNSAFE_MODULES & set(name.split(".")):
            yield line, f"imports {name}: what is read must never be unpickled or run"
    for call, name in called_names(file):
        if name in UNSAFE_CALLS:
            yield call.lineno, f"calls {name}: what is read must never be run"
        if any(word.arg == "allow_pickle" for word in call.keywords):
            yield call.lineno, "allows pickles in an array file"


def does_without_pandas(file: SourceFile) -> Violations:
    """It is no dependency; some versions of Arrow want it for a mere ``to_pandas_dtype``."""
    for line, name in imported_modules(file):
        if name.split(".")[0] == "pandas":
            yield line, f"imports {name}, which is not installed with us"
    for call, name in called_names(file):
        if name.rpartition(".")[2].startswith("to_pandas"):
            yield call.lineno, f"calls {name}, which may need pandas"


def maps_memory_in_one_file(file: SourceFile) -> Violations:
    """``mmap`` is imported by one named file of a package; the others ask that file."""
    if file.path in MAPPING_FILES:
        return
    for line, name in imported_modules(file):
        if name.split(".")[0] == "mmap":
            yield line, f"imports mmap: only {' and '.join(sorted(MAPPING_FILES))} map memory"
    for call, name in called_names(file):
        if name.endswith((".memmap", ".memory_map")):
            yield call.lineno, f"calls {name}: map through the package's own file"


def reads_windows_intact(file: SourceFile) -> Violations:
    """What is made from a window counts only if its file was whole until then."""
    if file.path == WINDOW_FILE:
        return
    for line in _reads_of_windows(file.tree):
        yield line, "reads a window outside of ``with intact(...)``: its file may have shrunk"
    for node in ast.walk(file.tree):
        if isinstance(node, ast.FunctionDef) and not any(map(_is_intact, ast.walk(node))):
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and _opens_array(call):
                    yield call.lineno, "opens a window of a file without ``with intact(...)``"


def _reads_of_windows(node: ast.AST) -> Iterator[int]:
    """The lines below a node that read ``window.data`` where nothing checks it afterwards."""
    if _is_intact(node):
        return
    if isinstance(node, ast.FunctionDef) and node.name in INTACT_FUNCTIONS:
        return
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in INTACT_CALLS:
        return
    if isinstance(node, ast.Attribute) and WINDOW_DATA.search(ast.unparse(node)):
        yield node.lineno
    for child in ast.iter_child_nodes(node):
        yield from _reads_of_windows(child)


def _is_intact(node: ast.AST) -> bool:
    return isinstance(node, ast.With) and any(
        ast.unparse(item).startswith("intact(") for item in node.items
    )


def _opens_array(call: ast.Call) -> bool:
    """Whether a call opens a window of one file, which is an array and no ``Window``."""
    receiver, _, name = ast.unparse(call.func).rpartition(".")
    return name == "window" and not receiver.endswith(("files", "self", "super()"))


def declares_no_layout(file: SourceFile) -> Violations:
    """Struct formats, big-endian dtypes and magic numbers are declared in layout.py."""
    if file.path == LAYOUT_FILE:
        return
    for line, name in imported_modules(file):
        if name.split(".")[0] == "struct" and file.path not in STRUCT_FILES:
            yield line, f"imports struct: layouts are declared in {LAYOUT_FILE}"
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Constant) and not isinstance(node.value, bool):
            if isinstance(node.value, int) and node.value in MAGIC_NUMBERS:
                yield node.lineno, f"the magic number {node.value:#x} has a name in {LAYOUT_FILE}"
            if isinstance(node.value, str) and BYTE_LAYOUT.fullmatch(node.value):
                yield node.lineno, f"the byte layout {node.value!r} belongs in {LAYOUT_FILE}"


def makes_durable_calls_in_one_file(file: SourceFile) -> Violations:
    """What changes files goes through writer/posix.py, where tests inject faults."""
    if file.path == DURABLE_FILE or file.path in BUILD_TOOLS:
        return
    for line, name in imported_modules(file):
        if _changes_files(*name.split(".", 1)):
            yield line, f"imports {name}: only {DURABLE_FILE} changes files"
    for call, name in called_names(file):
        module, _, member = name.rpartition(".")
        if _changes_files(module, member):
            yield call.lineno, f"calls {name}: only {DURABLE_FILE} changes files"
        elif member in WRITING_METHODS and module:
            yield call.lineno, f"calls .{member}(): only {DURABLE_FILE} changes files"
        elif name in ("open", "io.open") and _opens_for_writing(call):
            yield call.lineno, f"opens a file for writing: only {DURABLE_FILE} changes files"


def _changes_files(module: str, member: str = "") -> bool:
    if module == "shutil":
        return bool(member) and member not in READING_CALLS_OF_SHUTIL
    return module == "os" and member in DURABLE_CALLS


def _opens_for_writing(call: ast.Call) -> bool:
    modes = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "mode")]
    return any(set(ast.unparse(mode).strip("'\"")) & set("wax+") for mode in modes)


def is_small(file: SourceFile) -> Violations:
    """Files and functions that a reader can hold in mind."""
    count = len(file.text.splitlines())
    if count > MAX_FILE_LINES:
        yield MAX_FILE_LINES, f"{count} lines; a file has at most {MAX_FILE_LINES}"
    for node in ast.walk(file.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = (node.end_lineno or node.lineno) - node.lineno + 1
            if count > MAX_FUNCTION_LINES:
                yield node.lineno, f"{node.name} has {count} lines, at most {MAX_FUNCTION_LINES}"


def documents_public_names(file: SourceFile) -> Violations:
    """A docstring on the module and every public class, function and method."""
    if ast.get_docstring(file.tree) is None:
        yield 1, "the module has no docstring"
    yield from _undocumented(file.tree)


def _undocumented(parent: ast.Module | ast.ClassDef) -> Violations:
    for node in parent.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("_") or _repeats_a_name(node):
            continue
        if ast.get_docstring(node) is None:
            yield node.lineno, f"{node.name} has no docstring"
        if isinstance(node, ast.ClassDef):
            yield from _undocumented(node)


def _repeats_a_name(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Overloads and property setters are documented where the name is first defined."""
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any(name.endswith(("overload", ".setter", ".deleter")) for name in decorators)


def names_no_machine(text: str) -> Violations:
    """No path of somebody's machine and no package index, in any text file."""
    for line, content in enumerate(text.splitlines(), 1):
        for what, pattern in MACHINE_WORDS.items():
            if found := pattern.search(content):
                yield line, f"names {what}: {found.group()}"


def option_names(file: SourceFile) -> set[str]:
    """The options that spark_datasource/options.py declares.

    They are the first argument of every call whose name ends in ``Option``, and the keys of
    every dictionary assigned to a name that ends in ``OPTIONS``.
    """
    found = [
        call.args[0]
        for call, name in called_names(file)
        if call.args and name.lower().endswith("option")
    ]
    for node in file.tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(ast.unparse(target).endswith("OPTIONS") for target in targets):
                found += [key for key in node.value.keys if key is not None]
    return {
        node.value
        for node in found
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
