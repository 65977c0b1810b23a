"""The data of evaluation tasks in every format that is read, and CLIP_benchmark's written.

The images and annotations of evaluation tasks. Images are read when they are needed: a million
fit.

Read: the data of tasks. Written: CLIP_benchmark's layout (`write_benchmark`).

Invariants:

* At most two batches of decoded images are in memory, beside a cache of 2 GiB
  (`tests/train/test_eval_data.py`).
* What is written in CLIP_benchmark's layout is read again with the same bytes, and by webdataset
  (`tests/train/test_eval_data.py`).
* A number of tars that is not that of nshards.txt is refused (the same file).
"""
