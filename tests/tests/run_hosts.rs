//! `congruent run --hosts`: a job on two hosts, which are network namespaces. An ssh that enters them is a stand-in for what no test here is
//! about, how two machines come to trust each other; like ssh it starts a shell in another folder with an environment of its own, has the
//! launcher's pipes, and outlives it. What is said through it, and what the hosts say to each other, is real. One test has real ones: `sshd`
//! on each host.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod processes;
mod two_hosts;

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use congruent_tests::conformance::few_shapes;
use congruent_tests::skip;
use processes::Pe;
use two_hosts::{
    A, ALL_REDUCE, B, Ended, PATIENCE, Stage, all_reduce_is_right, clean, command_of, ended, signal, unpacked,
};

#[test]
fn every_pe_has_its_place() {
    let Some(stage) = Stage::new("every_pe_has_its_place") else { return };
    let names = [0, 1].map(|host| stage.hosts.name(host));
    let script = "echo PE $CONGRUENT_PE of $CONGRUENT_NPES, $CONGRUENT_LOCAL_RANK of $(ip netns identify) in $PWD, \
                  $CONGRUENT_HEAP $MINE $THEIRS $FAR $CONGRUENT_HOST_ID $CONGRUENT_SSH $SHELTERED; cat";
    let mut job = stage.script(&["--label", "-x", "MINE", "-x", "THEIRS=a b"], script);
    job.env("CONGRUENT_HEAP", "32M").env("MINE", "mine").env("SHELTERED", "not asked for");
    job.env("CONGRUENT_HOST_ID", "here").env("CONGRUENT_SSH", "no such ssh");
    let Ended { code, out, err } = ended(job.current_dir(stage.folder.path()));
    let mut lines: Vec<_> = out.lines().collect();
    lines.sort_unstable();
    let folder = stage.folder.path().canonicalize().unwrap();
    let expected = [0, 1, 2, 3].map(|pe| {
        let (name, local) = (&names[pe / 2], pe % 2);
        format!("[{pe}] PE {pe} of 4, {local} of {name} in {}, 32M mine a b there", folder.display())
    });
    assert_eq!((code, &*err), (Some(0), ""));
    assert_eq!(lines, expected);
    // Where the first host is known to itself by an address that no other reaches, PEs meet at one that leads there.
    let mut job = stage.launcher();
    job.args(["--hosts", &format!("localhost:1,{B}:1"), "--", "sh", "-c", "echo $CONGRUENT_RENDEZVOUS"]);
    let Ended { code, out, err } = ended(&mut job);
    assert_eq!(
        (code, out.lines().filter(|line| line.starts_with(&format!("{A}:"))).count()),
        (Some(0), 2),
        "{out}{err}"
    );
    // A list of one host: its PEs are not where the launcher's orders go.
    let mut job = stage.launcher();
    let Ended { code, out, err } = ended(job.args(["--hosts", &format!("{B}:2"), "--", "sh", "-c", "cat; echo ended"]));
    assert_eq!((code, &*out, &*err), (Some(0), "ended\nended\n", ""));
    // Hosts from a file, in another order.
    let hosts = stage.file("hosts", &format!("# ours\n{B} slots=1\n{A}:2\n"));
    let mut job = stage.launcher();
    job.arg("--hostfile").arg(hosts).args(["--label", "--", "sh", "-c", "ip netns identify"]);
    let Ended { code, out, .. } = ended(&mut job);
    let mut lines: Vec<_> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        (code, lines),
        (Some(0), vec![&*format!("[0] {}", names[1]), &format!("[1] {}", names[0]), &format!("[2] {}", names[0])])
    );
}

#[test]
fn lines_arrive_whole() {
    let Some(stage) = Stage::new("lines_arrive_whole") else { return };
    let script = "i=0; l=$(printf '%0200d' $CONGRUENT_PE); while [ $i -lt 3000 ]; do echo \"$l\"; echo \"$l\" >&2; i=$((i + 1)); done; printf %s end";
    let Ended { code, out, err } = ended(&mut stage.script(&[], script));
    assert_eq!(code, Some(0), "{err}");
    let whole = |line: &&str| line.len() == 200 && matches!(line.trim_start_matches('0'), "" | "1" | "2" | "3");
    // What has no end of a line is passed on without one.
    assert_eq!(out.matches("end").count(), 4);
    let out = out.replace("end", "");
    for text in [out, err] {
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 12_000);
        assert_eq!(lines.iter().find(|line| !whole(line)), None);
    }
}

#[test]
fn an_all_reduce_takes_the_network_and_is_right() {
    let Some(stage) = Stage::with_fabric("an_all_reduce_takes_the_network_and_is_right") else { return };
    all_reduce_is_right(&stage, 4, || ended(&mut stage.perf(&ALL_REDUCE)));
}

#[test]
fn the_first_failure_is_the_jobs_wherever_it_is() {
    let Some(stage) = Stage::new("the_first_failure_is_the_jobs_wherever_it_is") else { return };
    for (pe, host) in [(3, B), (0, A)] {
        for (end, code, says) in [("exit 7", 7, "exit status: 7"), ("kill -KILL $$", 137, "signal: 9 (SIGKILL)")] {
            let begun = Instant::now();
            let job = ended(&mut stage.script(&[], &format!("[ $CONGRUENT_PE != {pe} ] || {end}; sleep 60")));
            assert_eq!(job.code, Some(code), "{job:?}");
            assert_eq!(job.err, format!("congruent run: host {host}: PE {pe} failed, {says}\n"));
            assert!(begun.elapsed() < PATIENCE / 4 && stage.left(&[]).is_empty());
        }
    }
    // PE 3 is killed after PE 0 has failed, as when PE 0 failed because it lost PE 3.
    let note = stage.path("failed");
    let script = format!(
        "case $CONGRUENT_PE in 0) echo > {0}; exit 1;; 3) until [ -e {0} ]; do :; done; kill -KILL $$;; esac; sleep 60",
        note.display()
    );
    assert_eq!(ended(&mut stage.script(&[], &script)).code, Some(137));
}

#[test]
fn nothing_outlives_a_killed_launcher() {
    let Some(stage) = Stage::new("nothing_outlives_a_killed_launcher") else { return };
    let mut job = Pe::start(stage.script(&[], "trap '' TERM HUP INT; echo up; sleep 60; sleep 60"));
    for _ in 0..4 {
        job.hear("up", PATIENCE);
    }
    // On each host two PEs with their sleeps, and their launcher.
    assert!([0, 1].iter().all(|&host| stage.hosts.processes(host).unwrap().len() >= 5));
    signal("-KILL", job.child.id());
    assert_eq!(stage.left(&[]), Vec::<String>::new());
}

/// What waits in pipes when all PEs have ended.
#[test]
fn nothing_is_lost_where_the_reader_is_slow() {
    let Some(stage) = Stage::new("nothing_is_lost_where_the_reader_is_slow") else { return };
    let mut job = stage.script(&[], "seq 30000").stdout(Stdio::piped()).spawn().unwrap();
    thread::sleep(Duration::from_millis(1500));
    let mut text = String::new();
    job.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(job.wait().unwrap().success());
    assert_eq!(text.lines().count(), 4 * 30_000);
}

#[test]
fn signals_reach_the_pes_of_all_hosts() {
    let Some(stage) = Stage::new("signals_reach_the_pes_of_all_hosts") else { return };
    let heard = |name: &str, script: &str| {
        let mut job = Pe::start(stage.script(&[], script));
        for _ in 0..4 {
            job.hear("up", PATIENCE);
        }
        signal(name, job.child.id());
        for _ in 0..script.matches("saved").count() * 4 {
            job.hear("saved", PATIENCE);
        }
        let (code, complaints) = (job.child.wait().unwrap().code(), job.complaints());
        assert_eq!((stage.left(&[]), complaints), (Vec::new(), String::new()));
        code
    };
    assert_eq!(heard("-TERM", "echo up; exec sleep 60"), Some(143));
    assert_eq!(heard("-INT", "trap 'echo saved; exit 0' INT; echo up; while :; do sleep 0.1; done"), Some(0));
}

#[test]
fn a_stopped_pe_is_named_with_its_host() {
    let Some(stage) = Stage::new("a_stopped_pe_is_named_with_its_host") else { return };
    let mut job = stage.script(&[], "[ $CONGRUENT_PE != 3 ] || { echo $$; kill -STOP $$; }");
    let file = fs::File::create(stage.path("said")).unwrap();
    let mut job = job.stderr(file).spawn().unwrap();
    let until = Instant::now() + PATIENCE;
    let said = loop {
        let said = fs::read_to_string(stage.path("said")).unwrap();
        if said.ends_with('\n') || Instant::now() > until {
            break said;
        }
        thread::sleep(Duration::from_millis(5));
    };
    let begins =
        format!("congruent run: host {B}: PE 3 was stopped by signal 19 and the others wait for it: kill -CONT ");
    signal("-CONT", said.strip_prefix(&begins).unwrap_or_else(|| panic!("{said}")).trim());
    assert!(job.wait().unwrap().success());
}

/// Its PEs are missed by those of the other host, which fail; its launcher does not answer, so it is left.
#[test]
fn a_host_that_stands_still_ends_the_job() {
    let Some(stage) = Stage::with_fabric("a_host_that_stands_still_ends_the_job") else { return };
    let mut job = stage.perf(&["perf", "all-reduce", "-b", "8", "-e", "8", "-n", "100000000"]);
    job.env("CONGRUENT_DEADLINE_MS", "2000");
    let mut job = Pe::start(job);
    job.hear("# launch", PATIENCE);
    thread::sleep(Duration::from_millis(300));
    stage.hosts.processes(1).unwrap().iter().for_each(|process| signal("-STOP", process));
    let (code, complaints) = (job.child.wait().unwrap().code(), job.complaints());
    // PE 0 may name PE 1 alone, which waits for them as long.
    let named = ["PE 2", "PE 3", "PE 1 was to notify it"].iter().any(|pe| complaints.contains(pe));
    assert!(code == Some(1) && named, "{code:?}: {complaints}");
    assert!(complaints.contains(&format!("host {B}: no answer from it")), "{complaints}");
    assert_eq!(stage.left(&[]), Vec::<String>::new());
}

#[test]
fn what_cannot_run_is_said_with_its_host() {
    let Some(stage) = Stage::new("what_cannot_run_is_said_with_its_host") else { return };
    let both = &*format!("{A}:2,{B}:2");
    let nowhere = &*format!("{A}:2,nowhere:2");
    let silent = "sh -c 'echo one moment >&2; exec sleep 60'";
    let older = stage.file("older", "#!/bin/sh\necho motd\necho congruent run-share 0.0.1 wire 1\ncat\n");
    fs::set_permissions(&older, fs::Permissions::from_mode(0o755)).unwrap();
    let older = older.to_str().unwrap();
    for (arguments, code, parts) in [
        (&["--hosts", nowhere, "--", "true"][..], 1, &["host nowhere: ", "Could not resolve hostname nowhere"][..]),
        (&["--hosts", both, "--ssh", silent, "--", "true"], 1, &["no answer within 2 s", "one moment"]),
        (&["--hosts", both, "--ssh", "/no/such/ssh", "--", "true"], 1, &["cannot start /no/such/ssh"]),
        (
            &["--hosts", both, "--remote-program", "/no/congruent", "--", "true"],
            1,
            &["--remote-program", "/no/congruent: "],
        ),
        (
            &["--hosts", both, "--remote-program", "/bin/true", "--", "true"],
            1,
            &["before congruent there said anything"],
        ),
        (
            &["--hosts", both, "--remote-program", older, "--", "true"],
            1,
            &["of another version", "run-share 0.0.1", env!("CARGO_PKG_VERSION")],
        ),
        (&["--hosts", both, "--", "/no/such/program"], 1, &["cannot start /no/such/program"]),
        (&["--hosts", both, "-x", "NO_SUCH_THING", "--", "true"], 2, &["-x NO_SUCH_THING"]),
        (&["--hosts", "a:0", "--", "true"], 2, &["between 1 and 4096"]),
        (&["--hosts", "a:1,a:1", "--", "true"], 2, &["a is there twice"]),
        (&["--hosts", "a b", "--", "true"], 2, &["\"a b\" is no host"]),
        (&["--hostfile", "/no/such/file", "--", "true"], 2, &["/no/such/file: No such file"]),
        (&["--hosts", both, "-n", "2", "--", "true"], 2, &["cannot be used with"]),
    ] {
        let mut launcher = clean(Command::new(&stage.program));
        launcher.arg("run").env("CONGRUENT_SSH", stage.path("enter")).env("CONGRUENT_BOOTSTRAP_DEADLINE", "2");
        let begun = Instant::now();
        let said = ended(launcher.args(arguments));
        assert_eq!((said.code, &*said.out), (Some(code), ""), "{arguments:?}: {said:?}");
        assert!(parts.iter().all(|part| said.err.contains(part)), "{arguments:?}: {}", said.err);
        assert!(begun.elapsed() < PATIENCE / 4 && stage.left(&[]).is_empty(), "{arguments:?}");
    }
    // Something is mounted there over the folder that the launcher is in.
    let (hidden, inside) = (stage.path("hidden"), stage.path("hidden/inside"));
    fs::create_dir_all(&inside).unwrap();
    let mut job = stage.script(&[], "true");
    let said = ended(job.env("HIDDEN", hidden).current_dir(&inside));
    let parts = ["host 10.77.0.", "hidden/inside, where the job was started", "No such file"];
    assert!(said.code == Some(1) && parts.iter().all(|part| said.err.contains(part)), "{said:?}");
}

#[test]
fn the_token_is_in_the_environment_of_pes_and_nowhere_else() {
    let Some(stage) = Stage::new("the_token_is_in_the_environment_of_pes_and_nowhere_else") else { return };
    let mut job = Pe::start(stage.script(&[], "echo token $CONGRUENT_JOB_TOKEN; exec sleep 60"));
    let tokens = [(); 4].map(|()| job.hear("token", PATIENCE));
    assert!(tokens.iter().all(|token| token.len() == 64 && *token == tokens[0]));
    let token = tokens[0].as_bytes();
    let has = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).any(|part| part == what);
    let (mut pes, mut shares) = (0, 0);
    for process in fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path()) {
        let [words, variables] = ["cmdline", "environ"].map(|file| fs::read(process.join(file)).unwrap_or_default());
        assert!(!has(&words, token), "{}", String::from_utf8_lossy(&words));
        shares += u32::from(words.ends_with(b"\0run-share\0"));
        pes += u32::from(has(&variables, token));
        assert!(!has(&variables, token) || has(&variables, b"CONGRUENT_PE="), "{}", String::from_utf8_lossy(&words));
    }
    assert_eq!((pes, shares), (4, 2));
    drop(job);
    assert_eq!(stage.left(&[]), Vec::<String>::new());
}

/// Hosts whose `sshd` are real, with keys of their own: a launcher on the first reaches both by ssh, under names that only ssh knows.
struct Sshd {
    _servers: [Pe; 2],
    ssh: String,
}

impl Stage {
    /// `None` where there is no `sshd`, or it cannot be started here.
    fn sshd(&self, test: &str) -> Option<Sshd> {
        let unpacked = unpacked("sshd");
        let places = [unpacked.join("usr/sbin/sshd"), "/usr/sbin/sshd".into()];
        let Some(sshd) = places.iter().find(|place| place.exists()) else {
            skip(test, "no sshd: ./check tools unpacks it");
            return None;
        };
        let at = |name| self.path(name).display().to_string();
        for key in ["key", "host_key"] {
            let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &at(key)]).status();
            assert!(made.unwrap().success());
        }
        let config = format!(
            "Port 2222\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nPermitRootLogin yes\nPidFile none\n\
             ClientAliveInterval 1\nClientAliveCountMax 2\n",
            at("host_key"),
            at("key.pub")
        );
        self.file("sshd_config", &config);
        // It wants a user and a folder of its own. What is mounted is for the process alone.
        let users = fs::read_to_string("/etc/passwd").unwrap();
        self.file("passwd", &format!("{users}sshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n"));
        let libraries = unpacked.join(format!("usr/lib/{}-linux-gnu", env::consts::ARCH)).display().to_string();
        let script = format!(
            "mount --bind {} /etc/passwd && mount -t tmpfs none /run && mkdir /run/sshd && LD_LIBRARY_PATH={libraries} exec {} -D -e -f {} 2>&1",
            at("passwd"),
            sshd.display(),
            at("sshd_config")
        );
        let key = fs::read_to_string(self.path("host_key.pub")).unwrap();
        self.file("known_hosts", &format!("[{A}]:2222 {key}[{B}]:2222 {key}"));
        let config = format!(
            "Host near\nHostName {A}\nHost far\nHostName {B}\nHost *\nPort 2222\nIdentityFile {}\nUserKnownHostsFile {}\n\
             BatchMode yes\nServerAliveInterval 1\nServerAliveCountMax 2\n",
            at("key"),
            at("known_hosts")
        );
        let ssh = format!("ssh -F {}", self.file("ssh_config", &config).display());
        let start = |host| {
            let mut command = self.on(host, "sh");
            command.args(["-c", &script]);
            let mut server = Pe::start(command);
            server.hear("Server listening on 0.0.0.0 port 2222", PATIENCE);
            server
        };
        Some(Sshd { _servers: [0, 1].map(start), ssh })
    }
}

#[test]
fn real_ssh_leads_to_both_hosts() {
    const TEST: &str = "real_ssh_leads_to_both_hosts";
    let Some(stage) = Stage::with_fabric(TEST) else { return };
    let Some(Sshd { ssh, .. }) = &stage.sshd(TEST) else { return };
    let servers = [0, 1].map(|host| stage.hosts.processes(host).unwrap()).concat();
    // A network that is cut is noticed after the silence that the launcher allows; where time is short, after less.
    let ssh = &if few_shapes() { format!("{ssh} -o ServerAliveInterval=1") } else { ssh.to_string() };
    let job = |words: &[&str]| {
        let mut launcher = stage.on(0, &stage.program);
        launcher.args(["run", "--ssh", ssh, "--hosts", "near:1,far:2", "--"]).args(words);
        launcher
    };
    let program = stage.program.to_str().unwrap();
    all_reduce_is_right(&stage, 3, || ended(&mut job(&[&[program], &ALL_REDUCE[..]].concat())));

    let failed = ended(&mut job(&["sh", "-c", "[ $CONGRUENT_PE != 2 ] || exit 7; sleep 60"]));
    // Behind what the account's own shell may have to say.
    let told = failed.err.ends_with("congruent run: host far: PE 2 failed, exit status: 7\n");
    assert!(failed.code == Some(7) && told, "{failed:?}");
    assert_eq!(stage.left(&servers), Vec::<String>::new());

    let up = || {
        let mut job = Pe::start(job(&["sh", "-c", "trap '' TERM HUP INT; echo up; sleep 60; sleep 60"]));
        (0..3).for_each(|_| drop(job.hear("up", PATIENCE)));
        job
    };
    let mut killed = up();
    killed.child.kill().unwrap();
    assert_eq!(stage.left(&servers), Vec::<String>::new(), "after the launcher was killed");

    // The connection, by the process that serves it; and the network below it.
    let cut: [&dyn Fn(); 2] = [
        &|| {
            let there = stage.hosts.processes(1).unwrap();
            let serves = there.iter().find(|process| command_of(**process).contains("root@notty"));
            signal("-KILL", serves.unwrap());
        },
        &|| stage.hosts.join(false).unwrap(),
    ];
    for (cut, why) in cut.into_iter().zip(["and its PEs with it", "not responding"]) {
        let mut job = up();
        cut();
        let (code, complaints) = (job.child.wait().unwrap().code(), job.complaints());
        assert!(
            code == Some(1) && complaints.contains("host far: ssh ended") && complaints.contains(why),
            "{complaints}"
        );
        assert_eq!(stage.left(&servers), Vec::<String>::new(), "{why}");
    }
}
