"""The report of an ablation as JSON, as charts and as one page, which asks for nothing outside it.

Pure: what a report holds is collected by `clipmill.study.collect`.
"""
