# The words of the README: `make demo` and `make test`; the rest is for those who work on eventonce.
PY ?= python3
BIN := .venv/bin
BASE := .venv/.base
STAMP := .venv/.tools
ROUNDS ?= 20
EVENTS ?= 10000000
ifndef SEED
SEED := $(shell od -An -N2 -tu2 /dev/urandom | tr -d ' ')
endif
FLOORS := .cache/floors
# On the system's own Python where that is 3.11: Debian's is an early one, whose `re` and `urllib` differ.
FLOORS_PY := $(shell /usr/bin/python3.11 -c "import ensurepip" 2>/dev/null && echo /usr/bin/python3.11 || echo $(PY))
CORE := rules proof keys envelope memory ledger_facts ledger_states consumer explain cli store_cli web_authentication \
	bodies json_stream filter store_uri redaction masking
# The unit tests, and the contract on the embedded stores, but for what takes seconds: random programs,
# races and histories of many processes, an interruption at every instant, simulated captures, the linter
# of templates, commands that are compared over a whole capture, and those that the demo prints.
QUICK := tests/unit tests/contract/test_stores.py \
	-k "not every_answer_is_the_laws and not test_race and not every_history and not TestTextbook \
	and not interrupted_at_any_instant and not 7001 and not 7002 and not cfn_lint and not simulated_capture \
	and not anonymised_capture and not agree_with_the_true_ones and not capture_in_every_form \
	and not demo_prints"
# Four workers on two cores, since the tests mostly wait for servers and processes. A module, or a class
# such as the contract of one store, stays with one worker; the longest come first.
SPREAD := -n 4 --dist loadscope --no-loadscope-reorder
CODE := src tests benchmarks examples pictures
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

# Every test process imports all the tests: compiled once, not once for each of them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo examples quick test spark floors format check docs pictures screens bench scale histories breakages mutation clean

help: ## Show these words
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BASE): pyproject.toml
	@test -x $(BIN)/python || $(PY) -m venv .venv
	@$(PIP) install --upgrade "pip>=25.1"
	@$(PIP) install -e .
	@touch $@

$(STAMP): $(BASE)
	@$(PIP) install -e ".[all]" --group dev --group bench --group docs
	@touch $@

demo: $(BASE) ## Set up and run the main job on the embedded default
	@$(BIN)/eventonce demo

examples: $(STAMP) ## Set up and run every program in examples/
	@set -e; for run in examples/*/run.py; do \
	  echo; echo "== $$run"; $(BIN)/python $$run; \
	done

quick: $(STAMP) ## Pass what needs no server and little time: the loop while you write
	@$(BIN)/python -m pytest -n 4 --dist worksteal --hypothesis-profile quick $(QUICK)

test: $(STAMP) $(FLOORS)/.made ## Set up and pass the tests; with -j 2 both environments are made at once
	@sh tests/servers/debian.sh
	@$(BIN)/python -m pytest $(SPREAD)
	@$(MAKE) --no-print-directory floors

spark: $(STAMP) ## Compare the queries of eventonce sql with the engine on a local Spark; installs Java and pyspark
	@sh tests/servers/debian.sh java
	@$(PIP) install --group spark
	@$(BIN)/python -m tests.on_spark

$(FLOORS)/.made: pyproject.toml tests/floors.py Makefile
	@$(FLOORS_PY) -m venv --clear $(FLOORS)
	@$(PY) tests/floors.py > $(FLOORS)/floors.txt
	@$(FLOORS)/bin/python -m pip --disable-pip-version-check -q install -c $(FLOORS)/floors.txt \
		-e ".[redis,dynamodb,postgres,web,study]" "pytest>=8" "hypothesis>=6.100" "pytest-xdist>=3.6" "httpx>=0.27"
	@touch $@

floors: $(FLOORS)/.made ## Pass the core's tests with the lowest versions of Python and libraries
	@$(FLOORS)/bin/python -m pytest -n 2 $(CORE:%=tests/unit/test_%.py)

format: $(STAMP) ## Format the code, and mend what the linter can
	@$(BIN)/ruff format $(CODE)
	@$(BIN)/ruff check --fix $(CODE)

check: $(STAMP) ## Lint, types, the import rule and the workflow files
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --cache-dir .cache/imports
	@$(BIN)/zizmor --offline --quiet .github

docs: $(STAMP) ## Build the documentation site in .cache/site; a broken link fails
	@$(BIN)/zensical build --strict --clean

pictures: $(STAMP) ## Draw the pictures of the pages anew
	@$(BIN)/python -m pictures

screens: $(STAMP) ## Take the screenshots of the pages anew, in a real browser
	@sh tests/servers/debian.sh
	@$(BIN)/python -m pictures.screens
	@$(BIN)/python -m pictures.symptoms

bench: $(STAMP) ## Print the measured figures, as ratios within one run, and keep them
	@$(BIN)/python -m benchmarks

scale: $(STAMP) ## Diagnose up to EVENTS=10000000 events, count ten times as many, print how the cost grows
	@EVENTONCE_BENCH_STUDY=$(EVENTS) EVENTONCE_BENCH_COUNTING=$(EVENTS)0 $(BIN)/python -m benchmarks study counting

histories: $(STAMP) ## Record concurrent calls on every store, kill programs on three, and check what was left; SEED=7 ROUNDS=50 to choose
	@sh tests/servers/debian.sh
	@echo "SEED=$(SEED) ROUNDS=$(ROUNDS)"
	@EVENTONCE_SEED=$(SEED) EVENTONCE_HISTORIES=$(ROUNDS) $(BIN)/python -m pytest $(SPREAD) tests/contract -k "test_case and every_history or killed_programs"

breakages: $(STAMP) ## Plant each known breakage and show that a promise then fails
	@$(BIN)/python -m pytest -n 2 tests/breakages tests/contract/test_contract_catches.py tests/simulation/test_explorer.py

mutation: $(STAMP) ## Change the code in every small way and show what no test catches; FILES=core/ledger.py TESTS=… SAMPLE=50 SEED=7 to choose
	@echo "SEED=$(SEED)"
	@nice -n 10 $(BIN)/python -m tests.mutation $(FILES) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(TESTS),--tests $(TESTS)) --seed $(SEED)

clean: ## Remove what the words above made
	rm -rf .venv .cache
	find . -name __pycache__ -prune -exec rm -rf {} +
