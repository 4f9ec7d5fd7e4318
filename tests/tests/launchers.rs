//! Other launchers than `congruent run`, for real, on two hosts that are network namespaces: Open MPI's mpirun, Slurm's srun, and PyTorch's
//! torchrun.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod processes;
mod two_hosts;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use congruent_tests::skip;
use processes::Pe;
use two_hosts::{A, ALL_REDUCE, B, Ended, PATIENCE, Stage, all_reduce_is_right, ended, signal, unpacked};

/// Open MPI's own launcher, by the same stand-in for ssh.
#[test]
fn mpirun_starts_several_pes_on_each_host() {
    const TEST: &str = "mpirun_starts_several_pes_on_each_host";
    if Command::new("mpirun").arg("--version").output().is_err() {
        return skip(TEST, "no mpirun: ./check tools installs it");
    }
    let Some(stage) = Stage::with_fabric(TEST) else { return };
    let mpirun = |variables: &[&str]| {
        let mut command = stage.on(0, "mpirun");
        command.args(["--mca", "plm_rsh_agent", stage.path("enter").to_str().unwrap(), "-n", "4"]);
        command.args(["--host", &format!("{A}:2,{B}:2"), "-x", "CONGRUENT_MACHINE"]);
        variables.iter().for_each(|variable| _ = command.args(["-x", variable]));
        command.arg(&stage.program).args(ALL_REDUCE);
        command.env("CONGRUENT_JOB_TOKEN", "a test of two hosts").env("CONGRUENT_RENDEZVOUS", format!("{A}:29500"));
        // In containers root is all there is.
        ended(command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"))
    };
    all_reduce_is_right(&stage, 4, || mpirun(&["CONGRUENT_JOB_TOKEN", "CONGRUENT_RENDEZVOUS"]));
    // Who passes no secret on is told what to do.
    let Ended { code, err, .. } = mpirun(&["CONGRUENT_RENDEZVOUS"]);
    assert!(code != Some(0) && err.contains("CONGRUENT_JOB_TOKEN"), "{err}");
}

/// One torchrun on each host, which meet by a store of their own.
#[test]
#[ignore = "PyTorch is some gigabytes: ./check torchrun installs it"]
fn torchrun_starts_several_pes_on_each_host() {
    const TEST: &str = "torchrun_starts_several_pes_on_each_host";
    let Some(stage) = Stage::with_fabric(TEST) else { return };
    let torchrun = |host: usize, words: &[&str]| {
        let mut command = stage.on(host, unpacked("torch").join("bin/torchrun"));
        command.args(["--nnodes", "2", "--node-rank", &host.to_string(), "--nproc-per-node", "2"]);
        command.args(["--master-addr", A, "--master-port", "29500", "--no-python"]).arg(&stage.program).args(words);
        command
    };
    let job = |token: Option<&str>, words: &[&str]| {
        let with = |host| {
            let mut command = torchrun(host, words);
            command.envs(token.map(|token| ("CONGRUENT_JOB_TOKEN", token)));
            command
        };
        thread::scope(|scope| {
            let other = scope.spawn(|| ended(&mut with(1)));
            let here = ended(&mut with(0));
            let there = other.join().unwrap();
            // Neither may fail, nor be ended for taking too long.
            let code = if here.code == Some(0) { there.code } else { here.code };
            Ended { code, out: here.out + &there.out, err: here.err + &there.err }
        })
    };
    all_reduce_is_right(&stage, 4, || job(Some("a test of two hosts"), &ALL_REDUCE));
    let Ended { code, out, err } = job(Some("another"), &["info"]);
    assert!(code == Some(0) && out.contains("PE 0 of 4, launcher: Torchrun"), "{out}{err}");
    // Who has no secret is told what to do.
    let Ended { code, err, .. } = job(None, &["info"]);
    assert!(code != Some(0) && err.contains("CONGRUENT_JOB_TOKEN"), "{code:?}: {err}");
    assert_eq!(stage.left(&[]), Vec::<String>::new());
}

/// A Slurm with a node on each host, and what runs commands of it there.
struct Slurm<'a> {
    stage: &'a Stage,
    daemons: Vec<Pe>,
}

/// Names of the nodes.
const NODES: [&str; 2] = ["node-a", "node-b"];

impl<'a> Slurm<'a> {
    /// `None` where there is none.
    fn start(stage: &'a Stage, test: &str) -> Option<Self> {
        let root = unpacked("slurm");
        if !root.exists() {
            skip(test, "no Slurm: ./check tools unpacks it");
            return None;
        }
        let [a, b] = NODES;
        let folder = stage.folder.path().display();
        fs::create_dir(stage.path("state")).unwrap();
        stage.file("names", &format!("127.0.0.1 localhost\n{A} {a}\n{B} {b}\n"));
        // Whoever can connect is believed: nobody else is on this network.
        let config = format!(
            "ClusterName=test\nSlurmctldHost={a}({A})\nSlurmUser=root\nSlurmdUser=root\nAuthType=auth/none\n\
             CredType=cred/none\nPluginDir={}\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
             JobAcctGatherType=jobacct_gather/none\nSelectType=select/linear\nMpiDefault=none\n\
             StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/%n\nSlurmctldPidFile={folder}/slurmctld.pid\n\
             SlurmdPidFile={folder}/%n.pid\nSlurmdParameters=config_overrides\nNodeName={a} NodeAddr={A} CPUs=2\n\
             NodeName={b} NodeAddr={B} CPUs=2\nPartitionName=all Nodes={a},{b} Default=YES State=UP\n",
            plugins(&root)
        );
        stage.file("slurm.conf", &config);
        // Nothing here uses these groups; told which they would be, it does not look for any.
        stage.file("cgroup.conf", "CgroupPlugin=cgroup/v1\n");
        let mut slurm = Self { stage, daemons: Vec::new() };
        let config = stage.path("slurm.conf").display().to_string();
        let steps = root.join("usr/sbin/slurmstepd-wlm").display().to_string();
        let start = |host, name, arguments: &[&str]| {
            let mut command = slurm.on(host, name);
            command.args(["-D", "-f", &config]).args(arguments);
            Pe::start(command)
        };
        slurm.daemons = vec![
            start(0, "sbin/slurmctld-wlm", &[]),
            start(0, "sbin/slurmd-wlm", &["-d", &steps]),
            start(1, "sbin/slurmd-wlm", &["-d", &steps]),
        ];
        assert!(slurm.is_idle_soon(), "the nodes are not there: {}", slurm.end());
        Some(slurm)
    }

    /// A program of Slurm's on a node, which has its name and knows the others'.
    fn on(&self, host: usize, program: &str) -> Command {
        let mut command = self.stage.on(host, "unshare");
        let script = "hostname $0 && mount --bind \"$1\" /etc/hosts && shift && exec \"$@\"";
        command.args(["--uts", "sh", "-c", script, NODES[host]]).arg(self.stage.path("names"));
        let root = unpacked("slurm");
        command.env("SLURM_CONF", self.stage.path("slurm.conf")).env("LD_LIBRARY_PATH", plugins(&root));
        command.arg(root.join("usr").join(program));
        command
    }

    /// Waits until both nodes are there and have nothing to do.
    fn is_idle_soon(&self) -> bool {
        let begun = Instant::now();
        while ended(self.on(0, "bin/sinfo").args(["-h", "-o", "%D %t"])).out != "2 idle\n" {
            if begun.elapsed() > PATIENCE {
                return false;
            }
            thread::sleep(Duration::from_millis(50));
        }
        true
    }

    /// Ends it, the controller last, and gives what its daemons have said. A daemon that a step still talks to would wait for the step,
    /// which in turn waits for the controller: one that has not ended by then is killed.
    fn end(&mut self) -> String {
        let mut said = String::new();
        while let Some(mut daemon) = self.daemons.pop() {
            signal("-TERM", daemon.child.id());
            let begun = Instant::now();
            while let Ok(None) = daemon.child.try_wait() {
                if begun.elapsed() > PATIENCE / 6 {
                    signal("-KILL", daemon.child.id());
                    break;
                }
                thread::sleep(Duration::from_millis(5));
            }
            let _ended = daemon.child.wait();
            said += &daemon.complaints();
        }
        said
    }
}

impl Drop for Slurm<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

fn plugins(root: &Path) -> String {
    root.join(format!("usr/lib/{}-linux-gnu/slurm-wlm", std::env::consts::ARCH)).display().to_string()
}

#[test]
fn srun_starts_several_pes_on_each_node() {
    const TEST: &str = "srun_starts_several_pes_on_each_node";
    let Some(stage) = Stage::with_fabric(TEST) else { return };
    let Some(slurm) = Slurm::start(&stage, TEST) else { return };
    let srun = |token: Option<&str>, words: &[&str]| {
        let mut command = slurm.on(0, "bin/srun");
        command.args(["-N", "2", "-n", "4"]).arg(&stage.program).args(words);
        ended(command.envs(token.map(|token| ("CONGRUENT_JOB_TOKEN", token))))
    };
    all_reduce_is_right(&stage, 4, || srun(Some("a test of two nodes"), &ALL_REDUCE));
    // Two steps, one after the other, do not meet each other's PEs.
    let Ended { code, out, err } = srun(Some("another"), &["info"]);
    assert!(code == Some(0) && out.contains("PE 0 of 4, launcher: Slurm"), "{out}{err}");
    let Ended { code, err, .. } = srun(None, &["info"]);
    let says = err.contains("node-a:") && err.contains("export CONGRUENT_JOB_TOKEN");
    assert!(code == Some(1) && says, "{code:?}: {err}");
    assert!(slurm.is_idle_soon(), "a step does not end");
    drop(slurm);
    assert_eq!(stage.left(&[]), Vec::<String>::new());
}
