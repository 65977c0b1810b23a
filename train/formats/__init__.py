"""Weights and configurations of open_clip and Hugging Face.

Weights and configurations of open_clip and Hugging Face, both ways and bit for bit; and
graphs of ONNX.

* open_clip folder: `open_clip_config.json`, `open_clip_model.safetensors` (other weight files are
  read too). RUN/export is such a folder.
* Hugging Face folder: `config.json`, `model.safetensors`, `preprocessor_config.json`, and for
  CLIP's vocabulary `vocab.json`, `merges.txt`, `tokenizer_config.json`.
* ONNX folder: `image.onnx`, `text.onnx`, `onnx_config.json`. Its graphs are read, its model is
  not.

Invariants:

* Graphs of ONNX equal PyTorch within 1e-5 in fp32 and 1e-3 in fp16, and are there whole or not at
  all: `tests/train/formats/test_onnx.py`.
* A conversion changes no bit of a weight: `tests/train/formats/test_model_files.py`,
  `tests/train/formats/test_hf.py`, `tests/train/formats/test_open_clip_files.py`.
* A file of weights is never executed: `tests/train/formats/test_open_clip_files.py`.
* Forward and gradients equal open_clip's: `tests/train/formats/test_parity.py`.

To extend: a new format is one module with a function that writes a folder and one that reads it;
add it to `FORMATS` and to `load_model` in `model_files.py`.
"""
