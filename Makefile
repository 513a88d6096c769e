# `make test` and `make demo` create the environments that they need.
#
# They need make and Python 3.11 or newer; Spark needs Java 17 or newer, and the tests with other clients need Node with
# npm. This file finds a Python and installs tox into .venv/. tox creates the other environments under .tox/, from tox.ini
# and pyproject.toml.

TOX := .venv/bin/tox

# The first of these that runs is used: a name on PATH may be a stub for a version that is not installed. The newest
# version comes late, since some dependencies of the extras have no wheels for it yet.
PYTHONS := $(PYTHON) python3.13 python3.12 python3.11 python3.14 python3 python

# The Pythons of pyenv; PATH has only stubs, which run the selected version.
PYENV_PYTHONS = $(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/3.1[1-4].*/bin/python)

# The version of the java that Spark starts. It is evaluated only by the targets that use it.
JAVA_VERSION = $(shell "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
HAVE_SPARK = $(filter-out 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16,$(JAVA_VERSION))

# The version of npm, which installs the JavaScript client for the tests.
HAVE_NODE = $(shell npm --version 2>/dev/null)

# Printed before the first installation of Spark, which takes long and prints little.
ANNOUNCE_SPARK = @test -d .tox/spark || echo "Creating the Spark environment: pip builds pyspark (450 MB) once, in one or two minutes."

.PHONY: help test versions demo bench night lint clean
.DEFAULT_GOAL := help

help:
	@echo 'make test             run all tests and checks through tox'
	@echo 'make test ARGS="..."  run only pytest, with these arguments'
	@echo 'make versions         run pytest on each Python from 3.11 to 3.14 that is found'
	@echo 'make demo             replay 336,776 flights through two brokers into Spark'
	@echo 'make bench            compare the speed with other clients'
	@echo 'make night            run worlds, fuzzing and long tests for up to eight hours; one page of results'
	@echo 'make lint             check only form and types'
	@echo 'make clean            remove everything that these commands created'

test: $(TOX)
ifdef ARGS
	@$(TOX) run -e py -- $(ARGS)
else
	$(if $(HAVE_SPARK),$(ANNOUNCE_SPARK),@echo "Found no Java 17 or newer: the Spark tests are skipped.")
	$(if $(HAVE_NODE),,@echo "Found no npm: the tests with other clients are skipped.")
	@$(TOX) run -e py,lint,types,sample$(if $(HAVE_NODE),$(comma)clients)$(if $(HAVE_SPARK),$(comma)spark)
endif

# A Python that is not found is skipped, with a message.
versions: $(TOX)
	@$(TOX) run -e py311,py312,py313,py314 $(and $(PYENV_PYTHONS),--discover $(PYENV_PYTHONS)) -- $(ARGS)

demo: environment = $(if $(HAVE_SPARK),spark,demo)
demo: $(TOX)
	$(if $(HAVE_SPARK),$(ANNOUNCE_SPARK))
	@$(TOX) run -qq --notest -e $(environment)
	@.tox/$(environment)/bin/python spark/demo.py $(ARGS)

bench: $(TOX)
ifneq (,$(filter spark,$(ARGS)))
	@$(TOX) run -e bench-spark -- $(ARGS)
else
	@$(TOX) run -e bench -- $(ARGS)
endif

night: $(TOX)
	@$(TOX) run -e night -- $(ARGS)

lint: $(TOX)
	@$(TOX) run -e lint,types

clean:
	rm -rf .venv .tox .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage build dist

comma := ,

# pip writes the file with the name of this rule last, so its existence means that the installation is complete.
$(TOX):
	@for python in $(PYTHONS); do \
	    if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	        echo "Creating .venv with $$("$$python" --version)"; \
	        "$$python" -m venv --clear .venv && .venv/bin/python -m pip install -q --disable-pip-version-check 'tox>=4.67'; \
	        exit; \
	    fi; \
	done; \
	echo 'nsqkit needs Python 3.11 or newer with its venv module (on Debian: apt install python3-venv); name one with make PYTHON=...' >&2; \
	exit 1
