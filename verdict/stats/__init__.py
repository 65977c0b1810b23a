"""Statistics of ablations: values of runs in, differences with intervals and verdicts out.

Pure. Invariants:

* Dunnett's values are exact to 1e-9; interval, p and verdict agree (`test_comparison.py`); what
  cannot be compared is named (`test_analysis.py`).
* Simultaneous 95 % intervals hold the truth in 93-97 % for equal spreads (`test_model.py`).
* Runs that no seed pairs are compared without pairs: their order inside of an arm changes no number
  (`test_analysis.py`).
* Verdicts on all tasks hold together, and a further look has half the error (`test_analysis.py`).
* At most 5 % of simulated studies that stop early make a false call (`test_rounds.py`).
"""
