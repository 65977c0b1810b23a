"""Verdicts on the results of anyone's runs: tables in, differences with intervals out.

* The verdicts are those of `clipmill.verdict.stats.analyse`, as in the report of an ablation.
* What a file does not say is guessed, and every guess is said. What cannot be decided (one seed,
  nothing varies, metrics of two directions) is refused in words; no number stands for it.
* Neither torch nor ray is imported.
"""
