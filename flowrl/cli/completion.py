"""The verb `completion`: scripts with which shells complete verbs, options, graphs, runs and types."""

from __future__ import annotations

from argparse import REMAINDER, Action, ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Iterable, Sequence
from pathlib import Path

from flowrl.core.errors import UsageError

SCRIPTS = {
    "bash": """\
_flowrl() {
  local IFS=$'\\n'
  COMPREPLY=($(flowrl completion --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
  [[ ${COMPREPLY[0]} == */ ]] && compopt -o nospace
}
complete -o default -F _flowrl flowrl
""",
    "zsh": """\
_flowrl() {
  local -a found
  found=("${(@f)$(flowrl completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n $found[1] ]]; then compadd -a found; else _files; fi
}
compdef _flowrl flowrl
""",
    "fish": """\
complete -c flowrl -a '(flowrl completion --words (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
}


def completion_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "shell", metavar="SHELL", nargs="?", choices=SCRIPTS, help=" or ".join(SCRIPTS)
    )
    parser.add_argument(
        "--words",
        nargs=REMAINDER,
        metavar="WORD",
        help="print what the last of these words may become; the scripts use this",
    )


def completion(arguments: Namespace) -> int:
    if arguments.words is not None:
        print("\n".join(completions(arguments.words or [""])))
    elif arguments.shell is None:
        raise UsageError(f"completion: which shell? expected {', '.join(SCRIPTS)}")
    else:
        print(SCRIPTS[arguments.shell], end="")
    return 0


def completions(words: Sequence[str]) -> list[str]:
    """What the last word may become, given those before it. The first word is the verb."""
    from flowrl.cli.main import VERBS, make_parser

    *before, partial = words
    if not before:
        found: Iterable[str] = (*VERBS, "--help", "--version")
    elif before[0] not in VERBS:
        return []
    else:
        parser = make_parser(before[0])
        [verbs] = [a for a in parser._actions if isinstance(a, _SubParsersAction)]
        found = _for_verb(verbs.choices[before[0]], before[1:], partial)
    return sorted({word for word in found if word.startswith(partial)})


def _for_verb(parser: ArgumentParser, before: Sequence[str], partial: str) -> Iterable[str]:
    options = {name: action for action in parser._actions for name in action.option_strings}
    last = options.get(before[-1]) if before else None
    if last is not None and last.nargs != 0:
        return _values(last, partial)
    if partial.startswith("-"):
        return options
    positional = [a for a in parser._actions if not a.option_strings]
    given = _count_positional(options, before)
    if positional and (given < len(positional) or positional[-1].nargs in ("*", "+")):
        return _values(positional[min(given, len(positional) - 1)], partial)
    return options


def _count_positional(options: dict[str, Action], before: Sequence[str]) -> int:
    """How many of these words are neither options nor their values."""
    count, value_follows = 0, False
    for word in before:
        option = options.get(word)
        count += option is None and not value_follows
        value_follows = option is not None and option.nargs != 0
    return count


def _values(action: Action, partial: str) -> Iterable[str]:
    """What an argument may be, by its choices or by the name it has in the help."""
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    kind = str(action.metavar)
    from flowrl.graph.bundled import bundled_checkpoint, bundled_graphs

    if kind == "GRAPH":
        return [*bundled_graphs(), *_files(partial, ".yaml", ".yml")]
    if kind == "RUN":
        return _runs(partial)
    if kind == "RUN|GRAPH":
        names = [name for name in bundled_graphs() if bundled_checkpoint(name)]
        return [*names, *_runs(partial)]
    if kind in ("A", "B", "GRAPH|RUN"):  # of `diff` and `record`
        return [*bundled_graphs(), *_files(partial, ".yaml", ".yml"), *_runs(partial)]
    if kind == "NAME":
        from flowrl.graph.catalogue import Catalogue

        catalogue = Catalogue()
        return [name for kind in catalogue.kinds() for name in catalogue.names(kind)]
    if kind == "PAGE":
        from flowrl.cli.docs import docs_folder, page_names

        return page_names(docs_folder())
    if kind == "P":
        from flowrl.graph.places import BUILT_IN

        return BUILT_IN
    return []  # a file, which shells complete themselves, or a value


def _runs(partial: str) -> list[str]:
    return ["last", *(path.name for path in Path("runs").glob("*/")), *_files(partial)]


def _files(partial: str, *suffixes: str) -> list[str]:
    """Folders, and files with one of the suffixes, that begin with a path."""
    folder, _, name = partial.rpartition("/")
    base = Path(folder or ("/" if partial.startswith("/") else "."))
    prefix = f"{folder}/" if "/" in partial else ""
    try:
        paths = [p for p in base.iterdir() if p.name.startswith(name)]
    except OSError:
        return []
    folders = [f"{prefix}{p.name}/" for p in paths if p.is_dir() and not p.name.startswith(".")]
    return folders + [f"{prefix}{p.name}" for p in paths if p.suffix in suffixes]
