"""`pearl-api`: writes the files that are generated from the models, or checks that they are up to date."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from pearl_api.generated import crd_files, doc_files


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; 0 = done or up to date, 1 = `--check` found differences."""
    parser = argparse.ArgumentParser(prog="pearl-api", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (("crds", "the CRD manifests"), ("docs", "the reference pages")):
        command = commands.add_parser(name, help=f"write or check {what}")
        command.add_argument("--root", type=Path, default=Path.cwd(), help="root of the repository")
        action = command.add_mutually_exclusive_group(required=True)
        action.add_argument("--write", action="store_true", help="write the files")
        action.add_argument("--check", action="store_true", help="fail where a file differs")
    options = parser.parse_args(arguments)
    files = crd_files() if options.command == "crds" else doc_files()
    if options.write:
        return write(options.root, files)
    return check(options.root, files, f"pearl-api {options.command} --write")


def write(root: Path, files: Mapping[PurePosixPath, str]) -> int:
    """Writes generated files below `root`."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
        print(f"wrote {path}")
    return 0


def check(root: Path, files: Mapping[PurePosixPath, str], command: str) -> int:
    """Names every file that differs and the command that writes it; 1 = there is one."""
    stale = [path for path, text in files.items() if not _same(root / path, text)]
    for path in stale:
        print(f"{path} differs from its source: run `{command}` and commit it", file=sys.stderr)
    return 1 if stale else 0


def _same(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())
