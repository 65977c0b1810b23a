"""Bytes of an image to a checked, upright, resized image, in child processes that may die.

Bytes of an image to a checked, upright, resized image, in child processes that may crash.

None: images come and go as bytes, between processes through pipes.

Invariants:

* Hostile bytes raise only `RejectedImage`, at little cost: `tests/pipeline/images/test_bombs.py`,
  `test_header.py`.
* A crash, hang or too much memory costs one image: `tests/pipeline/images/test_decoders.py`.
* The same bytes and settings give the same pixels: `tests/pipeline/images/test_golden_pixels.py`;
  on every processor: `test_resizing.py`.
* A kept image has the same pixels and no metadata: `tests/pipeline/images/test_lossless.py`.

A new type of image: its first bytes in `MAGIC`, Pillow's name of it in `EXTENSIONS`, the pixels
in `test_golden_pixels.py`. A new option: a field of `Fetch` in `manifests/schema/recipe.py` and
of `Limits`, used in `transform.py`.
"""
