"""Filters of CLIP embeddings: they run a model, or read what `embed` has stored.

A model runs once for all filters of a pass; `embed` stores its embeddings, which others read
later without a model.

Reads what `pipeline/scoring` hands over, and weights of a folder, a file or the hub. Figures:
`docs/stages/score.md`.

Invariants:

* Pixels are those of open_clip's transform to the last bit:
  `tests/filters/clip/test_models.py`.
* Filters of the same weights share one load, one preprocessing and one forward:
  `tests/filters/clip/test_models.py`.
* A model of the hub is loaded at the commit that the id names: `tests/manifests/test_hub.py`.
* Ids of scores that were made before stay: `tests/filters/clip/test_clip_score.py`.
* Scores of stored embeddings are within the rounding to fp16: the same test.
* Heads give what torch gives, from files of three kinds: `tests/filters/clip/test_head.py`.
* s-CLIPLoss is its definition for any partitions: `tests/filters/clip/test_clip_loss.py`.

A filter that runs a CLIP subclasses `ClipFilter` of `model.py`. One that reads embeddings has an
option `on`, names it in `reads` and takes them with `stored_embeddings`.
"""
