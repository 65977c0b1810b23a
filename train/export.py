#!/usr/bin/env python3
"""Write a trained model, or one from elsewhere, as a folder of open_clip or Hugging Face.

Example: python train/export.py out/run --to out/run_huggingface --format huggingface
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)

from manifests import console

if __name__ == "__main__":
    console.end_on_stop_signals()

import argparse
import json
import logging

from manifests import disk
from train.formats import model_files

logger = logging.getLogger("train.export")
EXAMPLE = """example:
  python train/export.py out/run --to out/run_huggingface --format huggingface

"""
EXIT_STATUS = console.exit_help(
    {
        0: "the folder is written and was read back",
    }
)
HOW_TO_LOAD = {
    "open_clip": 'open_clip.create_model_and_transforms("local-dir:{}"), or --set init={}',
    "huggingface": 'transformers.CLIPModel.from_pretrained("{}"), or --set init={}',
}


def parser() -> argparse.ArgumentParser:
    """The command-line options."""
    parser = argparse.ArgumentParser(
        prog="train/export.py",
        description=__doc__.split("\n")[0],
        epilog=EXAMPLE + EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        metavar="RUN|MODEL",
        help="a finished run, an open_clip or Hugging Face CLIP folder, or open_clip:NAME/TAG",
    )
    parser.add_argument("--to", required=True, metavar="FOLDER", help="a new folder")
    parser.add_argument(
        "--format",
        choices=sorted(model_files.FORMATS),
        default="open_clip",
        help="open_clip is the format of RUN/export too (default: open_clip)",
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    return parser


def export(source: str, folder: str, format_name: str) -> dict[str, str | int]:
    """Convert a model; what was written, for the JSON line."""
    disk.output_folder(folder, "--to")
    model = model_files.load_model(source)
    model_files.save_model(model, folder, format_name)
    weights = model.state_dict()
    return {
        "model": source,
        "to": folder,
        "format": format_name,
        "parameters": sum(value.numel() for value in weights.values()),
        "weights_sha256": model_files.weights_sha256(weights),
    }


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 written and read back, 2 a mistake that one line explains."""
    args = parser().parse_args(argv)
    console.start_logging()

    def body() -> int:
        written = export(args.model, args.to, args.format)
        load = HOW_TO_LOAD[args.format].format(args.to, args.to)
        logger.info(
            "%s: %s parameters; load it with %s", args.to, f"{written['parameters']:,}", load
        )
        if args.json:
            print(json.dumps(written, sort_keys=True))
        return 0

    return console.run_command(
        body, stopped=f"{args.to} may be incomplete; remove it and export again"
    )


if __name__ == "__main__":
    raise SystemExit(main())
