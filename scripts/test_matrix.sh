#!/bin/sh
# Runs the tests in the corners of what is supported: the oldest and the newest Python that are
# here, each with the oldest and the newest pyspark. A corner installs the wheel, not the links,
# in an environment of its own under .venv-matrix/. Arguments go to pytest.
set -eu
cd "$(dirname "$0")/.."

# Everything as pinned, except pyspark in its oldest supported line when the corner asks for it.
constraints_for() {
    if [ "$1" = 4.1 ]; then
        sed 's/^pyspark==.*//' constraints.txt
        echo 'pyspark==4.1.*'
    else
        cat constraints.txt
    fi
}

run_corner() { # python, pyspark, pytest's arguments
    python=$1 spark=$2
    shift 2
    venv=.venv-matrix/$python-spark$spark
    echo "=== $python, pyspark $spark"
    [ -x "$venv/bin/pytest" ] || "$python" -m venv --clear "$venv"
    constraints_for "$spark" >"$venv/constraints.txt"
    rm -rf build/lib build/bdist.* # a wheel would take in what earlier builds left there
    "$venv/bin/python" -m pip install --quiet -c "$venv/constraints.txt" pip setuptools
    "$venv/bin/pip" install --quiet --no-build-isolation -c "$venv/constraints.txt" '.[test]'
    "$venv/bin/pip" install --quiet --no-build-isolation --no-deps --force-reinstall .
    # Not make's: Spark would start its workers with the Python of .venv, another version.
    PYSPARK_PYTHON=$PWD/$venv/bin/python
    export PYSPARK_PYTHON
    "$venv/bin/python" -m pytest -q "$@"
}

scripts/check_machine.sh java >/dev/null
tried= failed=
for python in python3.10 python3.13; do
    if ! PYTHON=$python scripts/check_machine.sh python >/dev/null 2>&1; then
        echo "=== $python is not here: left out"
        continue
    fi
    for spark in 4.1 newest; do
        tried="$tried $python-spark$spark"
        # Not `run_corner || …`: that would switch `set -e` off inside.
        set +e
        (set -e && run_corner "$python" "$spark" "$@")
        [ $? -eq 0 ] || failed="$failed $python-spark$spark"
        set -e
    done
done
[ -n "$tried" ] || { echo "Neither python3.10 nor python3.13 is here: nothing was tried." >&2; exit 1; }
echo "tried:$tried"
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
