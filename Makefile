# Two commands make what they need by themselves and then do their work: `make test` and `make demo`.
#
# They need make, Python 3.11 or newer, for Spark Java 17 or newer, and for the tests with other clients Node with npm.
# This file finds a Python and puts tox into .venv/; tox makes every other environment, under .tox/, from what tox.ini
# and pyproject.toml say.

TOX := .venv/bin/tox

# Tried in this order, the first that runs is taken: a name on PATH may be a stub for a version that is not installed.
# The newest is the last of them: not all that the extras need has been built for it yet.
PYTHONS := $(PYTHON) python3.13 python3.12 python3.11 python3.14 python3 python

# The Pythons of pyenv: on PATH there are only stubs, which run the version that is chosen at present.
PYENV_PYTHONS = $(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/3.1[1-4].*/bin/python)

# The java that Spark will start. Evaluated where it is used, so that other targets don't wait for it.
JAVA_VERSION = $(shell "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
HAVE_SPARK = $(filter-out 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16,$(JAVA_VERSION))

# The version of npm, which installs the client in JavaScript that the broker is tested with.
HAVE_NODE = $(shell npm --version 2>/dev/null)

# Said before the first installation of Spark, which takes long and prints little.
ANNOUNCE_SPARK = @test -d .tox/spark || echo "Making the Spark environment: pip builds pyspark (450 MB), a minute or two, once."

.PHONY: help test versions demo bench lint clean
.DEFAULT_GOAL := help

help:
	@echo 'make test             run all tests and checks through tox'
	@echo 'make test ARGS="..."  run pytest alone, with these arguments'
	@echo 'make versions         run pytest on each Python from 3.11 to 3.14 that is found'
	@echo 'make demo             replay 336,776 flights through two brokers into Spark'
	@echo 'make bench            measure, beside other clients'
	@echo 'make lint             check form and types alone'
	@echo 'make clean            remove all that these commands made'

test: $(TOX)
ifdef ARGS
	@$(TOX) run -e py -- $(ARGS)
else
	$(if $(HAVE_SPARK),$(ANNOUNCE_SPARK),@echo "Found no Java 17 or newer: the Spark tests are left out.")
	$(if $(HAVE_NODE),,@echo "Found no npm: the tests with other clients are left out.")
	@$(TOX) run -e py,lint,types$(if $(HAVE_NODE),$(comma)clients)$(if $(HAVE_SPARK),$(comma)spark)
endif

# One that is not found is left out, with a word.
versions: $(TOX)
	@$(TOX) run -e py311,py312,py313,py314 $(and $(PYENV_PYTHONS),--discover $(PYENV_PYTHONS)) -- $(ARGS)

demo: environment = $(if $(HAVE_SPARK),spark,demo)
demo: $(TOX)
	$(if $(HAVE_SPARK),$(ANNOUNCE_SPARK))
	@$(TOX) run -qq --notest -e $(environment)
	@.tox/$(environment)/bin/python spark/demo.py $(ARGS)

bench: $(TOX)
	@$(TOX) run -e bench -- $(ARGS)

lint: $(TOX)
	@$(TOX) run -e lint,types

clean:
	rm -rf .venv .tox .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage build dist

comma := ,

# The file of this rule's name is the last that pip writes, so it stands for the whole.
$(TOX):
	@for python in $(PYTHONS); do \
	    if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	        echo "Making .venv with $$("$$python" --version)"; \
	        "$$python" -m venv --clear .venv && .venv/bin/python -m pip install -q --disable-pip-version-check 'tox>=4.67'; \
	        exit; \
	    fi; \
	done; \
	echo 'nsqkit needs Python 3.11 or newer with its venv module (on Debian: apt install python3-venv); name one with make PYTHON=...' >&2; \
	exit 1
