# shellcheck shell=bash disable=SC2154 # read by run, which sets what is not set here
# The report, as text and as JSON, of all parts that have run.

# What is to be reached, as ratios: 1 and more is as good as theirs, whichever way figures go.
# Prints: what, ours, theirs, ratio, what is asked.
ratios() {
    cat "$OUT"/parts/*.figures | awk -F '\t' -v pes="$PES" '
        function best(key, us) { if (!(key in least) || us < least[key]) least[key] = us }
        function roof(bytes) { return copied > 0 ? bytes / copied / 1e3 : 0 }
        function time(us) { return us > 0 ? sprintf("%.3f us", us) : "not measured" }
        function tell(what, ours, theirs, asked) {
            printf "%s\t%s\t%s\t%s\t%s\n", what, time(ours), time(theirs),
                (ours > 0 && theirs > 0 ? sprintf("%.3f", theirs / ours) : ""), asked
        }
        # What copies read and write together, at sizes that no cache holds.
        $2 == "device" && $8 >= 268435456 && $11 > copied { copied = $11 }
        # By the way it goes, and by the threads of a block.
        $2 == "congruent" {
            best("o " $3 " " $4 " " $8, $9)
            best("o " $3 " of " $7 " " $8, $9)
            best("o " $3 " " $8, $9)
        }
        $3 == "abort" && $9 > aborted { aborted = $9 }
        $2 == "nccl" || $2 == "nvshmem" { best("t " $3 " " $4 " " $5 " " $8, $9) }
        END {
            mib = 1048576
            tell("kernels end once the host hears of a failure, beside 1 ms", aborted, 1000, "1.0")
            tell("put by all PEs, 64 MiB each, beside the copy roofline", least["o put " 64 * mib],
                roof(2 * pes * 64 * mib), "0.85")
            tell("get by all PEs, 64 MiB each, beside the copy roofline", least["o get " 64 * mib],
                roof(2 * pes * 64 * mib), "0.85")
            tell("all-reduce direct, 64 MiB, beside the copy roofline", least["o all-reduce direct simple " 64 * mib],
                roof(2 * pes * 64 * mib), "0.85")
            tell("all-reduce direct, 64 MiB, beside NCCL RSxLD_AGxST", least["o all-reduce direct simple " 64 * mib],
                least["t all_reduce AllReduce_RSxLD_AGxST, graph " pes " " 64 * mib], "")
            tell("all-reduce ring, 64 MiB, beside NCCL ring simple", least["o all-reduce ring simple " 64 * mib],
                least["t all_reduce Ring/Simple, graph " pes " " 64 * mib], "")
            for (bytes = 8; bytes <= 16384; bytes *= 2) {
                ours = least["o all-reduce one-shot ll " bytes]
                tell("all-reduce one-shot LL, " bytes " B, beside NCCL in-kernel LL", ours,
                    least["t ll_all_reduce in-kernel " pes " " bytes], "1.0")
                tell("all-reduce one-shot LL, " bytes " B, host, graph replay, beside NCCL AGxLL_R",
                    least["o all-reduce one-shot ll, graph " bytes],
                    least["t all_reduce AllReduce_AGxLL_R, graph " pes " " bytes], bytes == 8 ? "1.0" : "")
            }
            tell("barrier, in-kernel, beside NCCL LSA barrier", least["o barrier of 256 0"],
                least["t lsa_barrier in-kernel " pes " 0"], "1.0")
            theirs = least["t barrier_latency MPS " pes " 0"]
            tell("barrier, in-kernel, beside NVSHMEM", least["o barrier of 256 0"], theirs, "")
            for (bytes = 8; bytes <= 65536; bytes *= 8) {
                theirs = least["t put_signal_ping_pong_latency MPS 2 " bytes]
                tell("put_signal ping-pong, " bytes " B, beside NVSHMEM", least["o ping-pong " bytes], theirs,
                    "")
            }
        }'
}

# What takes one hop, from a store of one PE to a load of another that sees it: nanoseconds, and cycles at the highest clock.
hops() {
    local mhz
    mhz=$(awk -F '\t' '$1 == "highest clock" { print $2 + 0 }' "$OUT/machine")
    cat "$OUT"/parts/*.figures | awk -F '\t' -v mhz="$mhz" '
        function told(what) {
            if (!(what in least)) order[++n] = what
            if (!(what in least) || $9 < least[what]) least[what] = $9
        }
        $2 == "congruent" && $3 == "all-reduce" && $4 == "one-shot ll" && $8 == 8 { told("all-reduce one-shot LL, 8 B") }
        $2 == "congruent" && $3 == "barrier" { told("barrier of " $5 " PEs, blocks of " $7) }
        $2 == "congruent" && $3 == "ping-pong" && $8 == 8 { told("put_signal ping-pong, 8 B, blocks of " $7) }
        $2 == "nccl" && $3 == "ll_all_reduce" && $8 == 8 { told("NCCL in-kernel LL, 8 B") }
        $2 == "nccl" && $3 == "lsa_barrier" { told("NCCL LSA barrier") }
        END {
            for (i = 1; i <= n; i++)
                printf "%s\t%.0f\t%s\n", order[i], least[order[i]] * 1e3,
                    (mhz > 0 ? sprintf("%.0f", least[order[i]] * mhz) : "")
        }'
}

count() {
    cat "$OUT"/parts/*.steps | awk -F '\t' -v what="$1" '$2 == what { n++ } END { print n + 0 }'
}

report_text() {
    echo "congruent on a GPU"
    if [[ -n $VIRTUAL ]]; then
        echo "!!! On the virtual driver: nothing here ran on a GPU."
    fi
    awk -F '\t' '{ printf "%-14s %s\n", $1, $2 }' "$OUT/machine"
    printf '\n%s passed, %s failed, %s skipped\n' "$(count passed)" "$(count failed)" "$(count skipped)"
    local part
    for part in "${PARTS[@]}"; do
        printf '\n%s\n' "$part"
        if [[ ! -e $OUT/parts/$part.steps ]]; then
            echo "  has not run"
            continue
        fi
        awk -F '\t' '{ printf "  %-44s %-8s %5s s  %s\n", $1, $2, $3, $4 }' "$OUT/parts/$part.steps"
    done
    if [[ -z $VIRTUAL ]]; then
        printf '\nFigures. All PEs share one GPU: they are of its caches and its memory, never of NVLink.\n\n'
        printf '%-74s %14s %14s %7s %6s\n' "" ours theirs ratio asked
        ratios | awk -F '\t' '{ printf "%-74s %14s %14s %7s %6s\n", $1, $2, $3, $4, $5 }'
        printf '\n%-74s %14s %14s\n' "one hop" ns "cycles"
        hops | awk -F '\t' '{ printf "%-74s %14s %14s\n", $1, $2, $3 }'
        local columns='%-10s %-30s %-34s %4s %6s %7s %12s %12s %10s %10s\n'
        # shellcheck disable=SC2059 # the columns are a format
        printf "\n$columns" who work how pes blocks threads bytes us algbw busbw
        cat "$OUT"/parts/*.figures |
            awk -F '\t' -v columns="$columns" '{ printf columns, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11 }'
    fi
}

report_json() {
    # Tab-separated lines as JSON objects; keys that end in # are numbers where they are not empty.
    objects() {
        awk -F '\t' -v keys="$1" '
            # Without what JSON would have escaped: the awks do not agree on how that is written.
            function text(x) {
                gsub(/\\/, "/", x); gsub(/"/, "\047", x); gsub(/[[:cntrl:]]/, " ", x)
                return "\"" x "\""
            }
            BEGIN { n = split(keys, key, " "); CONVFMT = OFMT = "%.10g" }
            {
                line = ""
                for (i = 1; i <= n; i++) {
                    name = key[i]; number = sub(/#$/, "", name)
                    value = number ? ($i == "" ? "null" : $i + 0) : text($i)
                    line = line (i > 1 ? "," : "") text(name) ":" value
                }
                printf "%s    {%s}", (NR > 1 ? ",\n" : ""), line
            }
            END { if (NR) print "" }'
    }
    echo '{'
    echo '  "machine": ['
    objects "name value" <"$OUT/machine"
    printf '  ],\n  "virtual": %s,\n  "passed": %s,\n  "failed": %s,\n  "skipped": %s,\n  "steps": [\n' \
        "$([[ -n $VIRTUAL ]] && echo true || echo false)" "$(count passed)" "$(count failed)" "$(count skipped)"
    local part
    for part in "${PARTS[@]}"; do
        [[ ! -e $OUT/parts/$part.steps ]] || awk -v part="$part" '{ print part "\t" $0 }' "$OUT/parts/$part.steps"
    done | objects "part step verdict seconds# why"
    printf '  ],\n  "ratios": [\n'
    [[ -n $VIRTUAL ]] || ratios | objects "what ours theirs ratio# asked#"
    printf '  ],\n  "hops": [\n'
    [[ -n $VIRTUAL ]] || hops | objects "what ns# cycles#"
    printf '  ],\n  "figures": [\n'
    cat "$OUT"/parts/*.figures | objects "step who work how pes# blocks# threads# bytes# us# algbw# busbw#"
    printf '  ]\n}\n'
}
