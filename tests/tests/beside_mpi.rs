//! An all-reduce of two hosts beside Open MPI's over TCP, both between the same two network namespaces.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod processes;
mod two_hosts;

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use congruent_tests::{repository, skip};
use two_hosts::{A, B, Ended, Stage, ended};

const REPEATS: usize = 5;
/// Bytes of a PE, and how many times as long Open MPI's is to take, where that is promised.
const SIZES: [(u64, Option<f64>); 3] = [(1 << 10, None), (64 << 10, None), (1 << 20, Some(1.0))];

/// The median of microseconds.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Ours: microseconds of each size.
fn ours(stage: &Stage) -> BTreeMap<u64, f64> {
    let mut launcher = stage.launcher();
    launcher.args(["--hosts", &format!("{A}:1,{B}:1"), "--"]);
    launcher.arg(&stage.program).args("perf all-reduce -b 1K -e 1M -f 4 -n 200 -w 20 -c 0".split(' '));
    let Ended { code, out, err } = ended(&mut launcher);
    assert_eq!(code, Some(0), "{out}{err}");
    let rows = out.lines().filter(|line| !line.starts_with('#'));
    let rows = rows.map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.map(|row| (row[0].parse().unwrap(), row[5].parse().unwrap())).collect()
}

/// Open MPI's: the same.
fn open_mpi(stage: &Stage) -> BTreeMap<u64, f64> {
    let mut mpirun = stage.on(0, "mpirun");
    mpirun.args(["--mca", "plm_rsh_agent", stage.path("enter").to_str().unwrap(), "-n", "2"]);
    // Each host would bind its rank to the first core, and that is the same one.
    mpirun.args(["--bind-to", "none"]);
    mpirun.args(["--host", &format!("{A}:1,{B}:1"), "--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]);
    mpirun.args(["--mca", "btl_tcp_if_include", &format!("{A}/24")]).arg(stage.path("peer")).args(["1", "1048576"]);
    let mpirun = mpirun.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let Ended { code, out, err } = ended(mpirun);
    assert_eq!(code, Some(0), "{out}{err}");
    let number = |line: &str, name: &str| {
        line.split_once(&format!("\"{name}\":"))
            .and_then(|(_, rest)| rest.split([',', '}']).next()?.parse::<f64>().ok())
    };
    let rows = out.lines().filter(|line| line.contains("\"all_reduce\""));
    rows.map(|line| (number(line, "bytes").unwrap() as u64, number(line, "ns").unwrap() / 1e3)).collect()
}

#[test]
#[ignore = "wants an idle machine: ./check across"]
fn an_all_reduce_of_two_hosts_takes_no_longer_than_open_mpis() {
    const TEST: &str = "an_all_reduce_of_two_hosts_takes_no_longer_than_open_mpis";
    let Some(mut stage) = Stage::with_fabric(TEST) else { return };
    // One that is built for speed.
    stage.program = env::var_os("CONGRUENT_TEST_PROGRAM").map(PathBuf::from).unwrap_or(stage.program);
    // Some paces by an estimate of the network's speed, of which either side's times are one of two then, the one twice the other.
    for host in [0, 1] {
        let chosen =
            stage.on(host, "sh").args(["-c", "echo reno > /proc/sys/net/ipv4/tcp_congestion_control"]).status();
        assert!(chosen.unwrap().success(), "the congestion control of the hosts cannot be chosen");
    }
    let source = repository().join("benches/compare/all_reduce_peer.c");
    let flags = ["-O3", "-march=native", "-o"].map(OsStr::new);
    let compiled = Command::new("mpicc").args(flags).arg(stage.path("peer")).arg(source).status();
    match compiled {
        Err(_) => return skip(TEST, "no mpicc: ./check tools installs it"),
        Ok(status) => assert!(status.success()),
    }
    let [mut us, mut them] = [BTreeMap::<_, Vec<_>>::new(), BTreeMap::new()];
    for _ in 0..REPEATS {
        ours(&stage).into_iter().for_each(|(bytes, time)| us.entry(bytes).or_default().push(time));
        open_mpi(&stage).into_iter().for_each(|(bytes, time)| them.entry(bytes).or_default().push(time));
    }
    for (bytes, least) in SIZES {
        let [ours, theirs] = [&mut us, &mut them].map(|times| median(times.remove(&bytes).unwrap()));
        println!("MEASURED all-reduce of {bytes} bytes: {ours:.1} us, Open MPI {theirs:.1} us, {:.2}", theirs / ours);
        assert!(least.is_none_or(|least| theirs / ours >= least), "at least {least:?}");
    }
}
