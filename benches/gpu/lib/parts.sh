# shellcheck shell=bash disable=SC2154 # read by run, which sets what is not set here
# The parts of a run, but for the peers.

part_doctor() {
    step doctor 60 "$KIT/bin/congruent" doctor
    step topo 60 "$KIT/bin/congruent" topo
    # The driver compiles PTX when it first sees it and keeps what comes of it; nothing else is to wait for that.
    suite "compile test kernels" 400 threads::rma CONGRUENT_TEST_PES=1 &
    step "compile fixed kernels" 300 "$KIT/bin/congruent" perf barrier -p 1 -n 1 &
    step "compile the kernels of examples" 300 "$KIT/bin/examples/rows" &
    wait
}

FAMILIES=(rma signals ordering atomics teams groups lanes shared matrix arithmetic bulk direct collectives in_kernel norm moe
    flags protocols buffers prints)
# Those that run through a proxy.
PROXIED=(rma signals ordering atomics streams)

part_conformance() {
    local family pes
    for pes in 1 2 4 8; do
        families threads "$pes"
    done
    conform "proxied 2" "$STEP_LIMIT" "${PROXIED[*]/#/proxied::}" env
    [[ -n $VIRTUAL ]] || for family in rma signals; do
        suite "processes 2 $family, time slices" "$STEP_LIMIT" "processes::$family" CONGRUENT_TEST_PES=2
    done
    begin_mps
    for pes in 1 2 4 8; do
        families processes "$pes" "${SHARED[@]}"
    done
    end_mps
}

# All families by one start of the suite, which is most of the time where PEs are threads; then those by themselves that have not
# passed, since what is wrong with one ends the suite for all behind it. What PEs are, how many, and variables.
families() {
    local what=$1 pes=$2 family name="$1 $2"
    shift 2
    conform "$name" $((2 * STEP_LIMIT)) "${FAMILIES[*]/#/$what::}" env CONGRUENT_TEST_PES="$pes" "$@" && return
    for family in "${FAMILIES[@]}"; do
        grep -qs "^test $what::$family \.\.\. ok" "$OUT/logs/${name// /_}.log" && continue
        suite "$name $family" "$STEP_LIMIT" "$what::$family" CONGRUENT_TEST_PES="$pes" "$@"
    done
}

part_examples() {
    local example
    for example in "$KIT"/bin/examples/*; do
        step "${example##*/}" "$STEP_LIMIT" "$example"
    done
    begin_mps
    for example in "$KIT"/bin/examples/*; do
        step "${example##*/}, processes" "$STEP_LIMIT" env "${SHARED[@]}" "$KIT/bin/congruent" run -n 2 -- "$example"
    done
    end_mps
}

part_faults() {
    fault "deadline of threads" faults::deadline_of_threads
    begin_mps
    fault "deadline of processes" faults::deadline_of_processes "${SHARED[@]}"
    fault "dead process" faults::dead_process "${SHARED[@]}"
    end_mps
}

# Runs a test of a failure, and keeps how long the slowest kernel of a waiting PE still ran once its host had heard of it.
fault() {
    local name=$1 test=$2
    shift 2
    suite "$name" "$STEP_LIMIT" "$test" "$@"
    [[ -n $VIRTUAL ]] || awk -v name="$name" '
        /^MEASURED / {
            us = $2 + 0; sub(/.* kernel, /, ""); pes = $0 + 0
            if (us > slowest[pes]) slowest[pes] = us
        }
        END {
            for (pes in slowest)
                printf "%s\tcongruent\tabort\tafter the host heard\t%s\t1\t32\t0\t%s\t\t\n", name, pes, slowest[pes]
        }' "$OUT/logs/${name//[^A-Za-z0-9_.-]/_}.log" >>"$FIGURES"
}

part_mixed() {
    local pes
    for pes in 2 4 8; do
        suite "mixed threads $pes" 240 threads::mixed CONGRUENT_TEST_PES=$pes
    done
    begin_mps
    for pes in 2 4 8; do
        suite "mixed processes $pes" 240 processes::mixed CONGRUENT_TEST_PES=$pes "${SHARED[@]}"
    done
    end_mps
}

part_sanitizer() {
    local checker family sanitizer
    if [[ -n $VIRTUAL ]]; then
        cannot sanitizer "the virtual driver runs native code"
        return
    fi
    if ! sanitizer=$(tool compute-sanitizer); then
        cannot sanitizer "no compute-sanitizer in PATH or CUDA_HOME: install a CUDA toolkit"
        return
    fi
    for checker in memcheck racecheck; do
        for family in rma signals bulk groups; do
            conform "$checker $family" 200 "threads::$family" env CONGRUENT_TEST_PES=2 CONGRUENT_DEADLINE_MS=150000 \
                "$sanitizer" --tool "$checker" --target-processes all --error-exitcode 9
        done
    done
}

part_graphs() {
    local pes
    for pes in 1 2 4 8; do
        suite "graphs threads $pes" 120 threads::streams CONGRUENT_TEST_PES=$pes
    done
    begin_mps
    for pes in 2 4 8; do
        suite "graphs processes $pes" 120 processes::streams CONGRUENT_TEST_PES=$pes "${SHARED[@]}"
    done
    end_mps
}

# Measures one operation of ours; all PEs are threads. Name, then what `congruent perf` takes.
ours() {
    local name=$1
    shift
    step "$name" "$STEP_LIMIT" "$KIT/bin/congruent" perf "$@" --json || return 0
    ours_figures "$name" <"$OUT/logs/${name//[^A-Za-z0-9_.-]/_}.log" >>"$FIGURES"
}

# The out-of-place halves of the document of `congruent perf`.
ours_figures() {
    awk -v name="$1" '
        function value(line) { sub(/^[^:]*: */, "", line); gsub(/[",]/, "", line); return line }
        /^  "operation"/ { work = value($0) }
        /^  "pes"/ { pes = value($0) }
        /^  "mode"/ { mode = value($0) == "graph" ? ", graph" : "" }
        /^  "blocks"/ { blocks = value($0) }
        /^  "threads"/ { threads = value($0) }
        /^      "size"/ { size = value($0); way = "" }
        /^      "algorithm"/ { way = value($0) }
        /^      "protocol"/ { way = way " " value($0) }
        /^      "out_of_place"/ { mine = 1 }
        /^      "in_place"/ { mine = 0 }
        /"time_us"/ && mine { us = value($0) }
        /"algbw"/ && mine { algbw = value($0) }
        /"busbw"/ && mine {
            printf "%s\tcongruent\t%s\t%s\t%s\t%s\t%s\t%s\t%.3f\t%.3f\t%.3f\n",
                name, work, (way == "" ? "in-kernel" : way) mode, pes, blocks, threads, size, us, algbw, value($0)
        }'
}

part_perf() {
    if [[ -n $VIRTUAL ]]; then
        # That the commands work is worth knowing; what a CPU takes is not.
        step "perf barrier" "$STEP_LIMIT" "$KIT/bin/congruent" perf barrier -p 2 -n 2 --json
        step "perf all-reduce" "$STEP_LIMIT" "$KIT/bin/congruent" perf all-reduce -p 2 -n 1 -b 1K -e 1K --json
        step "perf all-reduce, graph" "$STEP_LIMIT" "$KIT/bin/congruent" perf all-reduce -p 2 -n 20 -b 8 -e 8 \
            --algo one-shot --proto ll --graph --threads 256 --json
        step "perf put" "$STEP_LIMIT" "$KIT/bin/congruent" perf put -p 2 --all -n 2 -b 1M -e 1M \
            --blocks 16 --threads 256 --json
        return
    fi
    # The kernels may take all registers of a thread, and then a block has no more than 256 of them.
    ours barrier barrier -p "$PES" --threads 256
    ours "barrier 1 warp" barrier -p "$PES" --threads 32
    ours ping-pong ping-pong -p 2 -b 8 -e 64K -f 8 --threads 32
    ours "ping-pong of blocks" ping-pong -p 2 -b 8 -e 64K -f 8 --threads 256
    ours "one-shot LL" all-reduce -p "$PES" -b 8 -e 16K --algo one-shot --proto ll --threads 256
    ours "one-shot LL, graph" all-reduce -p "$PES" -b 8 -e 16K --algo one-shot --proto ll --graph --threads 256
    ours "direct" all-reduce -p "$PES" -b 16M -e 64M -f 4 --algo direct --proto simple --blocks 16 --threads 256
    ours "ring" all-reduce -p "$PES" -b 16M -e 64M -f 4 --algo ring --proto simple --blocks 16 --threads 256
    # As much room as NCCL's rings have for each peer.
    CONGRUENT_BUFFSIZE=4M ours "ring, 4 MiB" all-reduce -p "$PES" -b 16M -e 64M -f 4 --algo ring --proto simple \
        --blocks 16 --threads 256
    ours "ring LL" all-reduce -p "$PES" -b 8 -e 64K -f 8 --algo ring --proto ll --threads 256
    ours "chosen" all-reduce -p "$PES" -b 8 -e 64M -f 8 --blocks 16 --threads 256
    ours put put -p "$PES" --all -b 1M -e 64M -f 4 --blocks 16 --threads 256
    ours get get -p "$PES" --all -b 1M -e 64M -f 4 --blocks 16 --threads 256
}
