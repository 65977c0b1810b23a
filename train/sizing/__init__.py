"""What a run needs of a device: memory and time.

What a run needs of a device: the memory of its step, the micro-batch that fits, and its time.

It writes no file. It reads `/proc/meminfo` and the limits of the cgroup; callers pass run.json
documents.

Invariants:

* The micro-batch that is chosen fits, and a larger friendly one does not:
  `tests/train/test_sizing.py`.
* Every remedy that a refusal names fits: `tests/train/test_sizing.py`.
* A run with `micro_batch: auto` has the identity of one without:
  `tests/train/test_sizing.py`.
* No layout that fits computes less than the advised one: `tests/train/test_sizing.py`.
* Sizing, `clipmill ablate plan` and a run with `micro_batch: auto` use one estimate:
  `tests/train/test_sizing.py`.
* The estimate is what torch allocates, within 10 %: `tests/train/model/test_memory.py`.

A new GPU is an entry of `train/sizing/devices.json`.

What is known of devices: data sheets, and speeds of training that others published.

It reads `devices.json` and `published.json` of this folder, and writes no file.

Invariants:

* Every figure has a source and lies above 0: `tests/train/test_sizing.py`.
* The longest word that matches torch's name decides: `tests/train/test_sizing.py`.
* A published speed is below the peak of its device: `tests/train/test_sizing.py`.

A new GPU is an entry of `devices.json`.
"""
