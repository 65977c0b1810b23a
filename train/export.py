#!/usr/bin/env python3
"""Write a trained model, or one from elsewhere, as a folder of open_clip or Hugging Face, or ONNX.

Examples: python train/export.py out/run --to out/run_huggingface --format huggingface
          python train/export.py out/run --onnx out/run_onnx
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
import dataclasses
import json
import logging
from typing import Any

from manifests import disk
from train.formats import OnnxOptions, model_files, save_onnx

logger = logging.getLogger("train.export")
EXAMPLE = """example:
  python train/export.py out/run --to out/run_huggingface --format huggingface
  python train/export.py out/run --onnx out/run_onnx --dtype fp16

"""
EXIT_STATUS = console.exit_help(
    {
        0: "the folder is written and was read back, ONNX by onnxruntime if it is installed",
    }
)
HOW_TO_LOAD = {
    "open_clip": 'open_clip.create_model_and_transforms("local-dir:{}"), or --set init={}',
    "huggingface": 'transformers.CLIPModel.from_pretrained("{}"), or --set init={}',
    "onnx": 'onnxruntime.InferenceSession("{}/image.onnx"), and text.onnx in {}',
}
TOKENIZER_NOTE = (
    "transformers' tokenizer does not clean texts as open_clip's does: call html.unescape and"
    " ftfy.fix_text on them first, or curly quotes and the like get other tokens"
)


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
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--to", metavar="FOLDER", help="a new folder for weights and configuration")
    target.add_argument(
        "--onnx", metavar="FOLDER", help="a new folder for image.onnx and text.onnx: both towers"
    )
    parser.add_argument(
        "--format",
        choices=sorted(model_files.FORMATS),
        help="with --to: open_clip is the format of RUN/export too (default: open_clip)",
    )
    parser.add_argument(
        "--dtype", help="with --onnx: fp32 or fp16; the embeddings are fp32 (default: fp32)"
    )
    parser.add_argument(
        "--text-length",
        type=int,
        metavar="N",
        help="with --onnx: the tokens of every text (default: any number up to the context)",
    )
    parser.add_argument(
        "--pixels",
        help="with --onnx: images are `normalised` (fp32, channels first, as open_clip's transform"
        " makes them) or `uint8` (RGB, channels last, as decoded) (default: normalised)",
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    return parser


def check_options(args: argparse.Namespace) -> None:
    """ValueError for an option that the format which is written does not have."""
    others = ("format",) if args.onnx else ("dtype", "text_length", "pixels")
    for name in others:
        if getattr(args, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} belongs to {'--to' if args.onnx else '--onnx'}; drop it")


def export(args: argparse.Namespace) -> dict[str, Any]:
    """Convert a model; what was written, for the JSON line."""
    check_options(args)
    folder = args.onnx or args.to
    disk.output_folder(folder, "--onnx" if args.onnx else "--to")
    written: dict[str, Any] = {"model": args.model, "to": folder}
    if args.onnx:
        options = OnnxOptions(
            dtype=args.dtype or "fp32",
            text_length=args.text_length,
            pixels=args.pixels or "normalised",
        )
        model = model_files.load_model(args.model)
        differences = save_onnx(model, folder, options, args.model)
        written |= {"format": "onnx", **dataclasses.asdict(options), "differences": differences}
    else:
        model = model_files.load_model(args.model)
        written["format"] = args.format or "open_clip"
        model_files.save_model(model, folder, written["format"])
    weights = model.state_dict()
    return {
        **written,
        "parameters": sum(value.numel() for value in weights.values()),
        "weights_sha256": model_files.weights_sha256(weights),
    }


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 written and read back, 2 a mistake that one line explains."""
    args = parser().parse_args(argv)
    console.start_logging()

    def body() -> int:
        written = export(args)
        folder = written["to"]
        load = HOW_TO_LOAD[written["format"]].format(folder, folder)
        logger.info(
            "%s: %s parameters; load it with %s", folder, f"{written['parameters']:,}", load
        )
        if written["format"] == "huggingface":
            logger.info("%s", TOKENIZER_NOTE)
        if differences := written.get("differences"):
            logger.info(
                "largest difference to PyTorch in fp32: image %.2g, text %.2g",
                differences["image"],
                differences["text"],
            )
        if args.json:
            print(json.dumps(written, sort_keys=True))
        return 0

    stopped = f"{args.to} may be incomplete; remove it and export again"
    if args.onnx:
        stopped = f"{args.onnx} was not written; export again"
    return console.run_command(body, stopped=stopped)


if __name__ == "__main__":
    console.end_process(main)
