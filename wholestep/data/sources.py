"""Where documents come from: one short string names the standard library, local files or a Hugging Face dataset."""

from __future__ import annotations

import glob
import re
import sysconfig
from pathlib import Path

from wholestep.data.documents import Documents, JoinedDocuments, TextFiles
from wholestep.data.hub import HubStream
from wholestep.data.records import RECORD_SUFFIXES, open_records
from wholestep.errors import DataError

TEXT_SUFFIXES = (
    *(".txt", ".text", ".md", ".rst", ".tex", ".org", ".html", ".xml"),
    *(
        ".py",
        ".pyi",
        ".c",
        ".h",
        ".cc",
        ".cpp",
        ".hpp",
        ".cu",
        ".java",
        ".js",
        ".ts",
        ".go",
        ".rs",
        ".rb",
        ".sh",
        ".sql",
    ),
    *(".swift", ".kt", ".scala", ".jl", ".lua", ".r", ".hs", ".ml", ".el", ".lisp", ".css", ".toml", ".yaml", ".yml"),
)
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(:[\w.-]+)?")
# Tests are left out: some hold other encodings on purpose, and they are a third of the library.
NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}

Source = Documents | HubStream


def open_source(spec: str) -> Source:
    """Open the documents that `spec` names. A local name wins over a hub name.

    - `stdlib`: the `.py` files of the running Python's standard library, without its tests;
    - a folder (searched below), a glob or one file: text files (`TEXT_SUFFIXES`), each one document; or record files
      (`RECORD_SUFFIXES`), each record's field or column `text` one document. Sorted by path; never both kinds at once;
    - otherwise a Hugging Face dataset, `name` or `name:config`: its split `train` and field `text`, streamed.

    Raises `DataError` when nothing is there, nothing in it can be read, or the first document cannot be.
    """
    if spec == "stdlib":
        return _open_stdlib()
    pattern = str(Path(spec).expanduser()) if spec.startswith("~") else spec
    path = Path(pattern)
    if spec and path.is_dir():  # Path("") is the working folder
        found = [file for file in sorted(path.rglob("*")) if file.is_file() and not _is_hidden(file.relative_to(path))]
        return _open_files(spec, path, found, also_unknown=False)
    if path.is_file():
        return _open_files(spec, path.parent, [path], also_unknown=True)
    if glob.has_magic(pattern):
        names = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 (Path.glob takes no absolute pattern)
        found = [Path(name) for name in names if Path(name).is_file()]
        # The part before the first wildcard, so that the fingerprint does not know where the corpus lies.
        fixed = Path(re.split(r"[*?\[]", pattern, maxsplit=1)[0] + "_").parent
        return _open_files(spec, fixed, found, also_unknown=True)
    if _looks_like_path(spec):
        raise DataError(f"data source {spec!r}: no such file or folder; mend the path, or name a Hugging Face dataset")
    return HubStream(spec)


def _open_stdlib() -> Documents:
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [path for path in sorted(root.rglob("*.py")) if not NOT_LIBRARY & set(path.relative_to(root).parts)]
    if not files:
        raise DataError("data source 'stdlib': this Python has no standard library sources; give a folder of text")
    return TextFiles(root, files)


def _open_files(spec: str, root: Path, files: list[Path], *, also_unknown: bool) -> Documents:
    """`also_unknown`: a file that the user named (by itself or by a glob) counts as text whatever its suffix."""
    records = [file for file in files if file.name.endswith(RECORD_SUFFIXES)]
    texts = [f for f in files if f not in records and (also_unknown or f.suffix.lower() in TEXT_SUFFIXES)]
    if records and texts:
        raise DataError(
            f"data source {spec!r}: holds both text files ({texts[0].name}, ...) and record files ({records[0].name}, "
            "...); name one kind with a glob such as 'folder/**/*.jsonl'"
        )
    if not records and not texts:
        raise DataError(
            f"data source {spec!r}: no text in it; it takes {', '.join(RECORD_SUFFIXES)} or text files such as .txt, "
            ".md, .py (name others with a glob)"
        )
    documents: Documents
    if texts:
        documents = TextFiles(root, texts)
    else:
        parts = [open_records(root, file) for file in records]
        documents = parts[0] if len(parts) == 1 else JoinedDocuments(parts)
    if not len(documents):
        raise DataError(f"data source {spec!r}: {records[0]} holds no record; fill it or name another source")
    documents[0]  # a wrong field or encoding is reported now, not from a background thread
    return documents


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.parts)


def _looks_like_path(spec: str) -> bool:
    return (
        spec.startswith((".", "/", "~"))
        or spec.endswith(RECORD_SUFFIXES + TEXT_SUFFIXES)
        or HUB_NAME.fullmatch(spec) is None
    )
