# The verbs of the project. Each does its own set-up; `make setup` alone makes .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
JOBS ?= 2

# pip would compile thousands of files that nothing imports; the others are kept compiled once they were.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo image-results vit-results study-results test quick check lint types format bench results soak docs clean

setup: $(STAMP)

# torch is pinned by constraints.txt in the same command: an unpinned one may pull in gigabytes of CUDA.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check -c constraints.txt torch -e '.[dev]'
	@touch $(STAMP)

demo: setup  ## Compare the weightings on digits and explain a right and a wrong answer in demo.html
	$(BIN)/attnknn demo --out demo.html

# Lint and types keep one core busy and the quick runs the other; then the suite takes both.
test: setup  ## Lint, types, import contract, then every test, doctest and README example
	$(MAKE) --no-print-directory -j2 check quick
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

quick: setup  ## The examples of the docstrings, and bad input under python -O
	$(BIN)/python -m pytest -q --doctest-modules src
	PYTHONOPTIMIZE=1 $(BIN)/python -m pytest -q -W ignore::pytest.PytestConfigWarning tests/faults \
	  -k 'not without_assertions and not killed and not eight_threads'

# Threads of several workers on as many cores wait for each other more than they compute.
test quick docs: export OMP_NUM_THREADS = 1

check: setup
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

lint: setup
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/lint-imports --no-cache

types: setup
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

bench: setup  ## Side by side with scikit-learn and plain FAISS; writes results/synthetic/bench.json
	$(BIN)/python benchmarks/search.py --out results/synthetic/bench.json
	$(BIN)/attnknn vit bench --device cpu --save results/vit/bench.json
	$(BIN)/python benchmarks/tables.py

results: setup  ## Every study whose numbers the README states; hours on a CPU, each goes on where it was stopped
	for data in adult letter digits wine-quality-red bank-marketing german-credit; do \
	  $(BIN)/attnknn study main --data $$data --seeds 5 --out runs/main-$$data --save results/$$data/main.json || exit 1; done
	$(BIN)/attnknn study main --data adult --methods attention --seeds 1 --device cpu --out runs/adult-cpu --save results/adult/cpu.json
	$(BIN)/attnknn study ablation --data adult --k 32 --seeds 5 --out runs/ablation-adult --save results/adult/ablation.json
	$(BIN)/attnknn study ablation --data digits --noise 0.3 --noise-kind asymmetric --k 32 --seeds 5 \
	  --out runs/ablation-digits --save results/digits/ablation.json
	$(BIN)/attnknn study main --data digits --noise 0.3 --noise-kind asymmetric --seeds 5 \
	  --methods distance,reliability,attention --out runs/noise-digits --save results/digits/noise.json
	$(BIN)/python benchmarks/attention.py --out results/synthetic/attention.json
	$(BIN)/python benchmarks/tables.py

NEAR = uniform,distance,reliability,attention,attention+tta,attention+k-ensemble,attention+tta+k-ensemble,attention+adaptive-k,attention+head-prior,attention+tta+head-prior
PICTURED = sklearn-knn,logistic,cnn,cnn+tta,$(NEAR)
SHORT = --epochs 30 --compile --seeds 3

image-results: setup  ## The same for images; needs a GPU, and the original files in ATTNKNN_DATA
	$(BIN)/attnknn study main --data cifar10 --epochs 150 --compile --seeds 5 --methods $(PICTURED) --keep attention \
	  --out runs/main-cifar10 --save results/cifar10/main.json
	$(BIN)/attnknn study main --data cifar10 --compile --noise 0.4 --seeds 3 --methods distance,reliability,attention,attention+tta \
	  --out runs/noise-cifar10 --save results/cifar10/noise-sym-40.json
	$(BIN)/attnknn study new-class --data cifar10 --compile --seeds 3 --out runs/new-class-cifar10 --save results/cifar10/new-class.json
	$(BIN)/attnknn study all --data cifar10 $(SHORT) --studies noise,imbalance,ablation --along noise=0.2,0.4 --jobs $(JOBS) --out runs/cifar10
	for study in "noise --along 0.2,0.4" imbalance ablation; do \
	  $(BIN)/attnknn study $$study --data cifar10 $(SHORT) --out runs/cifar10/$${study%% *} \
	    --save results/cifar10/$${study%% *}.json || exit 1; done
	for data in mnist fashion-mnist; do \
	  $(BIN)/attnknn study main --data $$data --compile --seeds 1 --methods $(NEAR) --out runs/main-$$data --save results/$$data/main.json || exit 1; done
	$(BIN)/python benchmarks/tables.py

VIT = $(BIN)/python benchmarks/vit.py --amp --compile
CONTROLLED = attention,attention-random-32,kvt,convnn,convnn-random-32
VIT_10 = $(VIT) --data cifar10 --select loss --seeds 3 --out runs/vit-cifar10
VIT_PLAIN = $(VIT) --data cifar10 --plain --seeds 3 --variants $(CONTROLLED) --out runs/vit-plain
VIT_100 = $(VIT) --data cifar100 --plain --seeds 3 --variants $(CONTROLLED) --out runs/vit-cifar100
VIT_224 = $(VIT) --data cifar10 --plain --seeds 1 --epochs 15 --resize 224 --patch-size 16 --variants attention,convnn --out runs/vit-224

# Trainings may share the GPU with others, the same command started again; the timing may not. Both go on from the record.
vit-results: setup  ## Token layers side by side on CIFAR; needs a GPU, and the original files in ATTNKNN_DATA
	for timing in "" --timing; do \
	  $(VIT_10) $$timing --save results/vit/cifar10.json || exit 1; \
	  $(VIT_PLAIN) $$timing --save results/vit/cifar10-plain.json || exit 1; \
	  $(VIT_100) $$timing --save results/vit/cifar100.json || exit 1; \
	  $(VIT_224) $$timing --save results/vit/cifar10-224.json || exit 1; done
	$(BIN)/python benchmarks/tables.py

# JOBS processes share the trainings; only a run that has the machine for itself times anything well.
study-results: setup  ## Every study; ten minutes on a core for Iris, two hours for a Wine task, far more for the last two
	$(BIN)/attnknn study all --data digits --quick --out runs/digits-quick --save results/digits/all-quick.json
	$(BIN)/attnknn study all --data iris --out runs/all-iris --save results/iris/all.json
	for data in wine-quality-red wine-quality-red-good adult mnist; do \
	  $(BIN)/attnknn study all --data $$data --seeds 3 --jobs $(JOBS) --out runs/all-$$data --save results/$$data/all.json || exit 1; done
	$(BIN)/python benchmarks/tables.py

docs: setup  ## Run every example of the README, the docs and the docstrings
	$(BIN)/python -m pytest -q tests/test_docs.py
	$(BIN)/python -m pytest -q --doctest-modules src

soak: setup  ## 200,000 random bank operations against a dictionary, then ten minutes of threads
	$(BIN)/python benchmarks/soak.py --operations 200000 --minutes 10

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache demo.html
