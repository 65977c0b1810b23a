"""One training run: its identity, its state, its steps and its log.

One training run: what it is, what it holds, its steps, and what it writes down.

Reads the blend and its pools. Writes `RUN/`: `blend.json`, `log.jsonl`, `checkpoints/`,
`nonfinite-RANK.json`, `export/`, and last `run.json`.

Invariants:

* A run that is killed and started again ends with the same weights (tests/train/test_resume.py).
* A run is refused in the folder of another one, by the comparison that an ablation uses too
  (tests/train/trainer/test_train_step.py).
* A step that is not finite changes no weight (tests/train/trainer/test_train_step.py).
* A file that never answers ends the run, which can be resumed (tests/train/test_hangs.py).
* A line of the log that was cut off is written again (tests/train/trainer/test_logbook.py).

To extend: a setting that does not decide the weights belongs into `INCIDENTAL` in identity.py.
"""
