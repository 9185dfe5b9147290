#!/bin/sh
# Looks for what rmqlog needs from the machine, and says in one sentence how to get what is missing.
#
#   check_machine.sh python   prints the interpreter to use: $PYTHON, or python3, or the newest
#                             of python3.13 to python3.10
#   check_machine.sh java     prints the java that Spark will start: $JAVA_HOME/bin/java, or java
set -eu

PYTHON_OLDEST=10 # of 3.x
PYTHON_NEWEST=13 # that is tested; a newer one is used when there is no other
JAVA_OLDEST=17

fail() {
    echo "$*" >&2
    exit 1
}

# The x of Python 3.x; 0 for Python 2; nothing when it cannot be run.
python_minor() {
    "$1" -c 'import sys; print(sys.version_info[1] if sys.version_info[0] == 3 else 0)' 2>/dev/null || true
}

is_tested() {
    [ -n "$1" ] && [ "$1" -ge "$PYTHON_OLDEST" ] && [ "$1" -le "$PYTHON_NEWEST" ]
}

choose_python() {
    if [ -n "${PYTHON:-}" ]; then
        echo "$PYTHON"
        return
    fi
    for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
        if is_tested "$(python_minor "$candidate")"; then
            echo "$candidate"
            return
        fi
    done
    echo python3
}

check_python() {
    python=$(choose_python)
    minor=$(python_minor "$python")
    install="install one with 'sudo apt install python3 python3-venv' (Debian 12, Ubuntu 22.04 or newer), 'sudo dnf install python3.13' (Fedora) or 'brew install python@3.13' (macOS), or name another with 'make setup PYTHON=...'."
    [ -n "$minor" ] ||
        fail "rmqlog needs Python 3.$PYTHON_OLDEST or newer, but '$python' cannot be run: $install"
    [ "$minor" -ge "$PYTHON_OLDEST" ] ||
        fail "rmqlog needs Python 3.$PYTHON_OLDEST or newer, but '$python' is $("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'): $install"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "Python's venv module is missing: install it with 'sudo apt install python3.$minor-venv' (Debian), 'sudo dnf install python3.$minor' (Fedora) or 'brew install python@3.13' (macOS)."
    is_tested "$minor" ||
        echo "Note: rmqlog is tested with Python 3.$PYTHON_OLDEST to 3.$PYTHON_NEWEST; this is 3.$minor." >&2
    echo "$python"
}

# 17 of 'openjdk version "17.0.15"', 8 of 'java version "1.8.0_402"'; nothing when it cannot be run.
java_major() {
    "$1" -version 2>&1 | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1
}

check_java() {
    java=java
    [ -z "${JAVA_HOME:-}" ] || java=$JAVA_HOME/bin/java
    major=$(java_major "$java")
    install="install one with 'sudo apt install openjdk-17-jdk-headless' (Debian 12, Ubuntu; Debian 13: openjdk-21-jdk-headless), 'sudo dnf install java-21-openjdk-headless' (Fedora) or 'brew install --cask temurin@21' (macOS)"
    [ -z "${JAVA_HOME:-}" ] || install="$install, and let JAVA_HOME name it or unset it"
    [ -n "$major" ] ||
        fail "Spark needs a JDK, $JAVA_OLDEST or newer, but '$java' cannot be run: $install."
    [ "$major" -ge "$JAVA_OLDEST" ] ||
        fail "Spark needs a JDK, $JAVA_OLDEST or newer, but '$java' is version $major: $install."
    echo "$java"
}

case "${1:-}" in
python) check_python ;;
java) check_java ;;
*) fail "usage: check_machine.sh python|java" ;;
esac
