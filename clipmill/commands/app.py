"""The table of commands, and how one is run: words are read, mistakes end in one line.

A command is a typed function in a module beside this one: its signature says which words it takes,
its docstring what they mean. The module is imported when its command is called.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from cyclopts import App, CycloptsError, Group, Parameter, Token
from cyclopts.exceptions import MissingArgumentError, UnusedCliTokensError

from clipmill.manifests import console, installation

LIBRARY = Path(__file__).resolve().parents[1] / "library"
Function = TypeVar("Function", bound=Callable[..., Any])

FIRST = Group("Data to verdict", sort_key=1)
POOLS = Group("Pools", sort_key=2)
TRAINING = Group("Models and machines", sort_key=3)
MORE = Group("More options", sort_key=9)

RESUME = "what is committed stays; run the command again to resume"
# What a person reads after a stop signal, where it is not RESUME.
STOPPED = {
    "audit watch": "the command that was watched goes on",
    "train": "the last checkpoint stays; the same command resumes the run",
    "evaluate": "run the command again",
    "ablate": "finished runs stay; run the same command again to do the others",
    "report": "run the command again",
    "weights": "nothing was written; run the command again",
}
# (name, App in a module, group, first line of the help)
COMMANDS = (
    ("demo", "build:DEMO", FIRST, "The whole route on a small web that is made here: about ten "
     "minutes."),
    ("try", "tryout:TRY", FIRST, "A verdict on a folder of pictures with captions, in one "
     "command."),
    ("build", "build:BUILD", FIRST, "A pool from a recipe, or a whole ablation: pools, runs, "
     "report."),
    ("train", "train:TRAIN", FIRST, "Train a CLIP on a blend of views; the same command resumes."),
    ("evaluate", "train:EVALUATE", FIRST, "Evaluate a model on tasks, with a file of predictions "
     "for each."),
    ("ablate", "ablate:ABLATE", FIRST, "Train the arms of an ablation with every seed, and compare "
     "them."),
    ("report", "ablate:REPORT", FIRST, "The page and the tables of an ablation, or of two."),
    ("decide", "decide:DECIDE", FIRST, "Verdicts on results that you have: a table of anyone's "
     "runs."),
    ("mix", "decide:MIX", FIRST, "The best blend of sources, from small runs on other blends."),
    ("why", "why:WHY", FIRST, "Why an arm is better: classes and clusters of the test samples, and "
     "groups of training pairs."),
    ("look", "pool:LOOK", POOLS, "A pool as a page: links, rules, a threshold to move, images."),
    ("audit", "audit:AUDIT", POOLS, "What became of every row; verify, repair, explain, purge …"),
    ("score", "pool:SCORE", POOLS, "Add the columns of filters to a pool."),
    ("filter", "pool:FILTER", POOLS, "Make the views of a recipe: a mask per row, no copy."),
    ("export", "pool:EXPORT", POOLS, "Write the kept rows of a view for other programs."),
    ("weights", "train:WEIGHTS", TRAINING, "A model as a folder of open_clip or Hugging Face, or "
     "as ONNX."),
    ("size", "train:SIZE", TRAINING, "What a training run needs: memory, layout, time."),
    ("bench", "train:BENCH", TRAINING, "Measure training on this machine."),
)  # fmt: skip

Json = Annotated[
    bool, Parameter("--json", negative=(), help="End with one JSON line on standard output.")
]
Engine = Annotated[
    Literal["auto", "inline", "ray"],
    Parameter(
        help="inline works in this process, ray on Ray; auto on a cluster that it was given, else "
        "in this process until what is left is worth Ray.",
        group=MORE,
    ),
]
Scale = Annotated[
    str | None,
    Parameter(
        help="A block of the manifest's `scales` to merge over it, such as debug.", group=MORE
    ),
]
Scales = Annotated[
    list[str] | None,
    Parameter(
        help="Blocks of the manifest's `scales` to run before it, each in OUT/scales/NAME on the "
        "same pools: which small run decides as the large one?",
        consume_multiple=(1, None),
        negative=(),
        group=MORE,
    ),
]


# {command: (options of another program, what stands in their place)}
OF_OTHERS = {
    "train": (
        {"--batch-size", "--dataset-type", "--epochs", "--lr", "--model", "--train-data"},
        "a line of open_clip stands in quotes behind --from-open-clip, a setting behind --set",
    ),
    "build": (
        {"--caption_col", "--image_size", "--output_folder", "--url_col", "--url_list"},
        "options of img2dataset are keys of a recipe: see docs/start/img2dataset.md",
    ),
}
# Behind an `=`, a `:` or a quotation mark a shell leaves `~/` as it is.
HOME = re.compile(r"\A((?:--)?(?:[\w-]+[=:])*)~/")
Words = Parameter(consume_multiple=(1, None), negative=(), show_default=False)


def print_json(value: Any, as_json: bool) -> None:
    """The line of --json: a dataclass or plain value."""
    if as_json:
        from clipmill.manifests import disk

        line = json.dumps(disk.to_plain(value), default=str, sort_keys=True)
        console.show(line.replace("\x7f", "\\u007f"))  # the only character that it leaves as it is


def print_result(lines: Iterable[str], value: Any, as_json: bool) -> int:
    """The line of --json, or else the lines for a person; the exit status 0."""
    print_json(value, as_json)
    if not as_json:
        console.show(*lines)
    return 0


def whole(_: object, tokens: Sequence[Token]) -> int:
    """A whole number. cyclopts alone rounds 1.5 to 2."""
    text = tokens[0].value
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise ValueError(f"{text!r} is no whole number")
    return int(text)


def wholes(kind: object, tokens: Sequence[Token]) -> list[int]:
    """Whole numbers, as `whole` reads each."""
    return [whole(kind, [token]) for token in tokens]


Whole = Parameter(converter=whole)


def documented_by(module: str, name: str) -> Callable[[Function], Function]:
    """A decorator: what the docstring of a command leaves out is that of the library's function
    which it calls. These are the lines before `Args:`, and the arguments that have the same name.
    The function is read, not imported: a help costs nothing of what a command needs.
    """

    def complete(command: Function) -> Function:
        own_text, own = _docstring_parts(command.__doc__)
        text, arguments = _docstring_parts(_docstrings(module)[name])
        meanings = {**arguments, **own}
        names = [name for name in inspect.signature(command).parameters if name in meanings]
        lines = [f"    {name}: {meanings[name]}" for name in names]
        command.__doc__ = "\n".join([own_text or text, "", "Args:", *lines])
        return command

    return complete


@functools.cache
def _docstrings(module: str) -> dict[str, str | None]:
    """{function: its docstring} of a module of the library, which is not imported."""
    source = ast.parse((LIBRARY / f"{module}.py").read_text(encoding="utf-8"))
    return {one.name: ast.get_docstring(one) for one in source.body
            if isinstance(one, ast.FunctionDef)}  # fmt: skip


def _docstring_parts(docstring: str | None) -> tuple[str, dict[str, str]]:
    """The lines of a docstring before `Args:`, and {argument: meaning, in one line}."""
    text, _, rest = inspect.cleandoc(docstring or "").partition("Args:\n")
    block = re.split(r"\n(?=\S)", rest)[0]  # before `Raises:`
    entries = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", block, re.M)
    return text.strip(), {name: " ".join(meaning.split()) for name, meaning in entries}


def make_app(name: str, example: str, statuses: Mapping[int, str]) -> App:
    """The App of a command, with examples and exit statuses below its options."""
    status_lines = console.exit_help(statuses)
    return App(
        name=name,
        help_format="plaintext",
        help_epilogue=f"Examples:\n{example.strip(chr(10))}\n\n{status_lines}",
        version_flags=[],
        default_parameter=Parameter(negative=(), show_default=_is_worth_showing),
        group_arguments=Group("Arguments", sort_key=0),
        group_parameters=Group("Options", sort_key=1),
    )


def _is_worth_showing(value: object) -> object:
    """What the help shows as a default: no False, and no empty text or list."""
    return value if value or (value == 0 and value is not False) else None


def root_app(called: str = "") -> App:
    """The command without its sub-commands' modules, which are imported when they are called. The
    help of the command that is called is its own docstring, not the line of the table.
    """
    app = App(
        name="clipmill",
        help="Turns web crawls into trained CLIP models, and says with error bars what each "
        "dataset choice was worth.",
        help_format="plaintext",
        help_epilogue="`clipmill COMMAND --help` shows the options of a command.",
        version=installation.version,
    )
    for place, (name, target, group, text) in enumerate(COMMANDS):
        line = None if name == called else text
        app.command(
            f"clipmill.commands.{target}", name=name, group=group, help=line, sort_key=place
        )
    return app


def reflow(app: App) -> None:
    """Join the lines of each paragraph in the docstring of a command: the help breaks them anew."""
    for function in (app.default_command, *(each.default_command for each in app.subapps)):
        if inspect.isfunction(function) and function.__doc__:
            text = inspect.cleandoc(function.__doc__)
            function.__doc__ = re.sub(r"(?<=\S)\n(?! *\w+:|\n) *(?=\S)", " ", text)


def main(argv: Sequence[str]) -> int:
    """Run the command of a command line; its exit status, 2 where the words are wrong."""
    home = os.path.expanduser("~/")
    argv = [HOME.sub(lambda match: match[1] + home, word) for word in argv]
    rank = int(os.environ.get("RANK", "0"))  # of torchrun and Ray Train: one rank speaks for all
    console.start_logging(logging.INFO if rank == 0 else logging.ERROR)
    app = root_app(argv[0] if argv else "")
    asks_help = not {"--help", "-h"}.isdisjoint(argv)
    if asks_help:
        sys.meta_path.append(installation.StandIns())  # type: ignore[arg-type]
    try:
        name, apps, _ = app.parse_commands(argv)
        if asks_help:
            for each in apps[1:]:  # not the root, which would import every command
                reflow(each)
        function, bound, _ = app.parse_args(argv, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        return console.mistake(_one_line(error) + _misspelt(app, argv))
    except ImportError as error:  # of the module of a command
        if isinstance(error.__cause__, ImportError):
            raise error.__cause__ from None
        raise
    stopped = STOPPED.get(" ".join(name)) or STOPPED.get("".join(name[:1]), RESUME)
    return console.run_command(lambda: int(function(*bound.args, **bound.kwargs) or 0), stopped)


def _one_line(error: CycloptsError) -> str:
    """What is wrong with the words of a command line, in one line."""
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"{error.unused_tokens[0]!r} belongs to no option; see --help"
    text = " ".join(str(error).split())
    if isinstance(error, MissingArgumentError):
        text = re.sub(
            r'^(Command ".*?" p|P)arameter (.*) requires an argument\.$', r"\2 is missing", text
        )
        named = text.removesuffix(" is missing")
        if named in (error.root_input_tokens or ()):
            text = f"{named} has no value behind it"
    return text.rstrip(".")


def _misspelt(app: App, argv: Sequence[str]) -> str:
    """A hint where the second word is nearly a sub-command: it was read as the first argument; and
    where options are those of another program."""
    options, hint = OF_OTHERS.get(argv[0] if argv else "", (set[str](), ""))
    if not options.isdisjoint(word.partition("=")[0] for word in argv):
        return f"; {hint}"
    if len(argv) < 2 or argv[0] not in {name for name, *_ in COMMANDS}:
        return ""
    names = [name for each in app[argv[0]].subapps for name in each.name if name[0] != "-"]
    close = difflib.get_close_matches(argv[1], names, n=1, cutoff=0.75)
    is_near = bool(close) and close[0] != argv[1]
    return f"; did you mean `clipmill {argv[0]} {close[0]}`?" if is_near else ""
