# The whole project is driven from here; `.ci/run` calls the same targets.
PYTHON ?= python3
# The environment. One for another Python: make quick VENV=.venv-3.13 PYTHON=python3.13
VENV ?= .venv
# Half of the time of the tests is waiting, so a machine of few cores runs two processes on each.
WORKERS ?= $(shell cores=$$(nproc); [ $$cores -gt 4 ] && echo auto || echo $$((2 * cores)))
# Every process of pytest computes in one thread. Files start in the order of
# tests/conftest.py: the longest first.
PYTEST := OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
V := $(VENV)/bin
# The tests start over a hundred Python children: each finds the project compiled, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: venv demo docs quick quick-tests test all-tests check chaos
.PHONY: mutation bench bench-peers bench-page bench-growth bench-fetch bench-scale bench-whole bench-gpu
venv: $(VENV)/installed

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(V)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(V)/python -m pip install --quiet --disable-pip-version-check --editable ".[build,train,score,test,docs]"
	touch $@

demo: venv
	$(V)/clipmill demo

# The site in out/site. Reports become pages of it: make docs DEMO=out/demo REPORTS="cifar10=out/cifar10"
docs: venv
	$(V)/python docs/tools/build_site.py --report demo=$(or $(DEMO),out/demo) $(addprefix --report ,$(REPORTS))

check: venv
	$(V)/ruff check .
	$(V)/ruff format --check --diff . >/dev/null || ($(V)/ruff format --diff . | head -n 40; exit 1)
	$(V)/vulture
	$(V)/python .ci/budget.py
	$(V)/mypy

# Before a commit: the checks, and beside them the quick tests of the files that are at most NEAR
# imports away from what has changed; all where nothing has. make quick NEAR=all, or TESTS="tests/field"
NEAR ?= 2
quick:
	@$(MAKE) --no-print-directory -j2 check quick-tests

quick-tests: venv
	$(PYTEST) -m "not slow and not ray" $(or $(TESTS),$$($(V)/python .ci/nearest.py $(NEAR)))

test:
	@$(MAKE) --no-print-directory -j2 check all-tests

all-tests: venv
	$(PYTEST)

# Every kill point, every fault, every damage: hours. `make test` has a sample of them.
chaos: venv
	CLIPMILL_CHAOS=1 $(PYTEST) -s tests/chaos tests/pipeline/test_object_store.py tests/test_ray_kills.py \
		tests/test_nodes.py tests/test_jobs.py

# Small changes of kernels that their tests should notice: hours for all, minutes for one.
# make mutation KERNELS="loss order" SAMPLE=1000; SURVIVORS=1 tries those again that lived
mutation: venv
	$(V)/python benchmarks/mutation.py $(if $(KERNELS),--kernels $(KERNELS)) \
		$(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SURVIVORS),--survivors)
	$(V)/python benchmarks/mutation.py --table

# Every stage beside its peer: about 30 minutes on two idle cores, less with SHARE.
# make bench PHOTOS=photographs/ STAGES="crawl choose" SHARE=0.25
bench: venv             # needs nginx for the stage fetch
	$(V)/python benchmarks/bench.py $(if $(STAGES),--stages $(STAGES)) \
		$(if $(PHOTOS),--photographs $(PHOTOS)) $(if $(SHARE),--share $(SHARE)) $(if $(TURNS),--turns $(TURNS))

bench-peers: venv       # virtual environments of the peers, in out/bench/peers
	$(V)/python benchmarks/peers/environments.py

bench-page: venv        # the tables of docs/measured.md from benchmarks/results, without measuring
	$(V)/python benchmarks/measured.py

# Exponents of the cost of every stage at 1x, 2x, 4x and 8x: minutes. make bench-growth STEPS="views look"
bench-growth: venv
	$(V)/python benchmarks/growth.py $(if $(STEPS),--steps $(STEPS))

bench-fetch: venv       # make bench-fetch PICTURES=a/folder/of/photographs; needs nginx
	$(V)/python benchmarks/fetching/fetch.py --pictures $(PICTURES)

bench-scale: venv       # hours at all sizes: make bench-scale SCALE="--part index --sizes 1 2"
	$(V)/python benchmarks/scale.py $(SCALE)

# A made web of many pictures from WAT to report, with kills: hours, in legs that go on in the folder.
# make bench-whole WHOLE="--folder /data/whole --pictures 2000000 --minutes 150"
bench-whole: venv
	$(V)/python benchmarks/whole.py $(WHOLE)

# Needs a GPU, torch and little else, so no environment is made; WHEELS names folders with open_clip's wheels.
bench-gpu:
	$(or $(wildcard $(V)/python),$(PYTHON)) benchmarks/gpu.py $(if $(WHEELS),--wheels $(WHEELS))
