# shellcheck shell=bash disable=SC2154 # read by run, which sets what is not set here
# Steps of a part: they run, within their time, and what they came to is noted.

# Files of the part that runs now: what its steps came to, and what they measured, a line each.
# steps: step, verdict, seconds, note. figures: step, who, work, how, pes, blocks, threads, bytes, us, algbw, busbw.
STEPS='' FIGURES='' PART_ENDS=0

begin_part() {
    mkdir -p "$OUT/logs" "$OUT/parts"
    STEPS=$OUT/parts/$1.steps FIGURES=$OUT/parts/$1.figures
    : >"$STEPS"
    : >"$FIGURES"
    PART_ENDS=$((SECONDS + PART_LIMIT))
    echo "=== $1: ${ABOUT[$1]}"
}

# Notes what a step came to: name, verdict, seconds, why.
note() {
    local why=${4//[$'\t\r\n']/ }
    printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "${why:0:400}" >>"$STEPS"
    printf '  %-44s %-8s %4s s  %s\n' "$1" "$2" "$3" "${why:0:160}"
}

# Runs a command as a step: its name, the seconds it may take, the command. Fails if the step did.
# A command that ends with 77, and a test that says SKIPPED, could not run here.
step() {
    local name=$1 limit=$2 log status began=$SECONDS left=$((PART_ENDS - SECONDS)) why
    shift 2
    log=$OUT/logs/${name//[^A-Za-z0-9_.-]/_}.log
    if ((left < 5)); then
        note "$name" skipped 0 "the part's $PART_LIMIT s are over"
        return 1
    fi
    timeout --kill-after=5 $((limit < left ? limit : left)) "$@" >"$log" 2>"$log.err" </dev/null
    status=$?
    why=$(grep -hE '^SKIPPED ' "$log.err" "$log" | head -n 1)
    case $status in
    0) if [[ -n $why ]]; then note "$name" skipped $((SECONDS - began)) "$why"; else
        note "$name" passed $((SECONDS - began)) ""
        return 0
    fi ;;
    77) note "$name" skipped $((SECONDS - began)) "$(tail -n 1 "$log.err")" ;;
    124 | 137) note "$name" failed $((SECONDS - began)) "did not end in $((limit < left ? limit : left)) s" ;;
    *) note "$name" failed $((SECONDS - began)) "ended with $status: $(reason "$log")" ;;
    esac
    return 1
}

# The line of a log that tells most: what the last test to panic said, or else the first error.
reason() {
    local line
    line=$(cat "$1" "$1.err" | grep -A 1 'panicked at ' | grep -vE 'panicked at |^--$' | tail -n 1)
    [[ -n $line ]] || line=$(cat "$1.err" "$1" | grep -E '[Ee]rror|FAILED|failed' | head -n 1)
    echo "${line:-$(tail -n 1 "$1.err")}"
}

# Notes a step that cannot run here.
cannot() {
    note "$1" skipped 0 "$2"
}

# Runs one test of the suite as a step: the step's name, the seconds, the test, its variables.
suite() {
    local name=$1 limit=$2 test=$3
    shift 3
    conform "$name" "$limit" "$test" env "$@"
}

# Runs tests of the suite as a step: the step's name, the seconds, the tests in a word, what runs them. Each says at once what is
# wrong: a step that is ended has said it.
conform() {
    local name=$1 limit=$2 tests=()
    read -ra tests <<<"$3"
    shift 3
    step "$name" "$limit" "$@" "$KIT/bin/conformance_gpu" --exact "${tests[@]}" --test-threads 1 --nocapture
}
