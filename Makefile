# Every target makes the environment it needs in .venv/ first; python3 (3.11 to 3.13) is all a machine must have.
PYTHON ?= python3
ARGS ?=
MINUTES ?= 10

NAME ?= laptop

.PHONY: demo example test setup check bench chaos site wheels deb locks sbom clean

demo:            ## the main job on this machine's own sensors: make demo ARGS="--seconds 20"
	@$(PYTHON) demo.py $(ARGS)

example:         ## one of the stories in examples/: make example NAME=fleet ARGS="--seconds 30"
	@$(PYTHON) tools/bootstrap.py full
	@.venv/bin/python examples/$(NAME).py $(ARGS)

test:            ## style, types, layering and the whole quick test suite
	@$(PYTHON) tools/check.py $(ARGS)

setup:           ## just make .venv/ with Spark and the examples' libraries
	@$(PYTHON) tools/bootstrap.py full

check:           ## style, types and layering only
	@$(PYTHON) tools/check.py --static

bench:           ## the benchmarks, CPU per message
	@$(PYTHON) tools/bootstrap.py dev
	@.venv/bin/python -m benchmarks $(ARGS)

chaos:           ## break a running cluster for a while and judge what survived: make chaos MINUTES=60 ARGS="--seed 7"
	@$(PYTHON) tools/bootstrap.py dev
	@.venv/bin/python -m tests.chaos --minutes $(MINUTES) $(ARGS)

site:            ## the documentation as a site: make site, then open site/index.html
	@$(PYTHON) tools/bootstrap.py site
	@.venv/bin/python -m tools.site $(ARGS)

wheels:          ## wheels with the compiled core for CPython 3.11 to 3.13 in dist/: make wheels ARGS="--python 3.12"
	@$(PYTHON) tools/wheels.py $(ARGS)

deb:             ## a Debian package with units and configuration in dist/, for the release of the machine it is built on
	@$(PYTHON) tools/deb.py $(ARGS)

locks:           ## deploy/locks: versions and hashes of the images' packages; make locks ARGS=--upgrade takes the newest
	@$(PYTHON) tools/locks.py $(ARGS)

sbom:            ## what an installation consists of, as CycloneDX beside the wheels in dist/
	@$(PYTHON) tools/sbom.py $(ARGS)

clean:
	rm -rf .venv build dist site demo-out example-out lightmq-data .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
