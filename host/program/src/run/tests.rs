use super::output::copy;
use super::*;
use std::io::{BufRead, BufReader};
use std::process::Output as Finished;

/// Runs a shell script as every PE; the status of the first that failed, and how long it all took.
fn job(npes: u32, script: &str) -> (Option<ExitStatus>, Duration) {
    let begun = Instant::now();
    let args = Args { npes: Some(npes), command: ["sh", "-c", script].map(OsString::from).to_vec(), ..Args::default() };
    (
        Launch::start(&args, Share::whole(args.npes()).unwrap(), Output::Own).unwrap().supervise().unwrap(),
        begun.elapsed(),
    )
}

fn refusal(npes: u32, label: bool, command: &[&str]) -> String {
    let args =
        Args { npes: Some(npes), label, command: command.iter().map(OsString::from).collect(), ..Args::default() };
    run(&args).expect_err("refused").to_string()
}

#[test]
fn success_is_everyones() {
    assert_eq!(job(3, "test $CONGRUENT_PE -lt $CONGRUENT_NPES && test ${#CONGRUENT_JOB_TOKEN} = 64").0, None);
}

/// PE 0 alone has the socket.
#[test]
fn pe_0_is_given_a_socket_that_listens() {
    let folder = tempfile::tempdir().unwrap();
    let counts = format!("ls -l /proc/self/fd | grep -c socket: > {}/sockets.$CONGRUENT_PE", folder.path().display());
    let has = "if [ $CONGRUENT_PE = 0 ]; then [ -S /proc/self/fd/$CONGRUENT_LISTENER ]; else [ -z \"$CONGRUENT_LISTENER\" ]; fi";
    assert_eq!(job(2, &format!("{has} || exit 1; {counts}; exit 0")).0, None);
    let sockets = |pe| std::fs::read_to_string(folder.path().join(format!("sockets.{pe}"))).unwrap();
    let [with, without]: [u32; 2] = [sockets(0), sockets(1)].map(|count| count.trim().parse().unwrap());
    assert_eq!(with, without + 1);
}

#[test]
fn the_first_failure_ends_the_job_and_is_its_code() {
    let (status, took) = job(3, "if [ $CONGRUENT_PE = 1 ]; then exit 7; fi; sleep 60");
    assert_eq!(status.map(code), Some(7));
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn a_signal_is_128_and_its_number() {
    assert_eq!(job(2, "if [ $CONGRUENT_PE = 0 ]; then kill -KILL $$; fi; sleep 60").0.map(code), Some(137));
}

/// PE 1 is killed as soon as PE 0's failure has been taken in, as when PE 0 failed because it lost PE 1.
#[test]
fn a_killed_pe_is_the_reason_even_if_another_was_seen_to_fail_first() {
    let folder = tempfile::tempdir().unwrap();
    let note = folder.path().join("pe0").display().to_string();
    let fails = format!("echo $$ > {note}.draft; mv {note}.draft {note}; exit 1");
    let dies = format!(
        "until [ -e {note} ]; do :; done; read pe0 < {note}; while kill -0 $pe0 2>&-; do :; done; kill -KILL $$"
    );
    let (status, _) = job(3, &format!("case $CONGRUENT_PE in 0) {fails};; 1) {dies};; esac; sleep 60"));
    assert_eq!(status.map(code), Some(137));
}

#[test]
fn a_stopped_pe_hears_that_the_job_ends() {
    let folder = tempfile::tempdir().unwrap();
    let note = folder.path().join("stopped").display().to_string();
    let heard = folder.path().join("heard");
    let stops = format!("trap 'echo > {}; exit 0' TERM; echo > {note}; kill -STOP $$; sleep 60", heard.display());
    let fails = format!("until [ -e {note} ]; do :; done; sleep 0.1; exit 5");
    let (status, _) = job(2, &format!("if [ $CONGRUENT_PE = 0 ]; then {fails}; fi; {stops}"));
    assert_eq!(status.map(code), Some(5));
    assert!(heard.exists(), "it was killed, unheard");
}

#[test]
fn a_stopped_pe_is_named() {
    const ROLE: &str = "CONGRUENT_TEST_LAUNCHER";
    if std::env::var_os(ROLE).is_some() {
        job(2, "[ $CONGRUENT_PE = 0 ] || kill -STOP $$");
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "run::tests::a_stopped_pe_is_named", "--nocapture"])
        .env(ROLE, "1")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Its words say how to go on, so the test does what they say.
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let said = said.find(|line| line.contains("stopped")).unwrap();
    assert!(said.contains("PE 1 was stopped by signal 19"), "{said}");
    let pid = said.rsplit_once("kill -CONT ").unwrap().1.parse().ok().and_then(Pid::from_raw).unwrap();
    rustix::process::kill_process(pid, Signal::CONT).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn who_does_not_listen_is_killed() {
    let (status, took) = job(2, "trap '' TERM; if [ $CONGRUENT_PE = 0 ]; then exit 3; fi; sleep 60; sleep 60");
    assert_eq!(status.map(code), Some(3));
    assert!((GRACE..GRACE + PATIENCE * 3).contains(&took), "{took:?}");
}

#[test]
fn what_cannot_run_is_said() {
    assert!(refusal(0, false, &["true"]).contains("-n 0"));
    assert!(refusal(MAX_PES + 1, false, &["true"]).contains("-n 4097"));
    assert!(refusal(2, false, &["/does/not/exist"]).contains("/does/not/exist"));
    assert!(refusal(2, false, &[]).contains("no program"));
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if limit < u64::from(MAX_PES) * 3 {
        assert!(refusal(MAX_PES, true, &["true"]).contains("ulimit -n"));
    }
}

#[test]
fn virtual_gpus_are_told_to_every_pe() {
    let shape = |text: &str| text.parse::<Shape>();
    assert_eq!((shape("4"), shape("2x4")), (Ok(Shape { gpus: 4, pes: 1 }), Ok(Shape { gpus: 2, pes: 4 })));
    for text in ["", "0", "65", "x4", "2x", "2x0", "two"] {
        assert!(shape(text).is_err_and(|why| why.contains("2x4")), "{text}");
    }
    let args = Args { on: shape("2x4").ok(), command: vec!["true".into()], ..Args::default() };
    let command = prepare(&args, &mut Share::whole(args.npes()).unwrap(), 7).unwrap();
    for (name, value) in [("CONGRUENT_NPES", "8"), ("CONGRUENT_MACHINE", "virtual"), ("CONGRUENT_VIRTUAL", "2x4")] {
        assert!(command.get_envs().any(|set| set == (name.as_ref(), Some(value.as_ref()))), "{name}");
    }
}

/// One engine, which listens at the name that they are told.
#[test]
fn all_pes_have_one_engine() {
    let folder = tempfile::tempdir().unwrap();
    let note = format!("{}/engine", folder.path().display());
    let script =
        format!("grep -c $CONGRUENT_VIRTUAL_ENGINE /proc/net/unix && echo $CONGRUENT_VIRTUAL_ENGINE >> {note}");
    let args =
        Args { on: "2x2".parse().ok(), command: ["sh", "-c", &script].map(OsString::from).to_vec(), ..Args::default() };
    assert_eq!(
        Launch::start(&args, Share::whole(args.npes()).unwrap(), Output::Own).unwrap().supervise().unwrap(),
        None
    );
    let told = std::fs::read_to_string(note).unwrap();
    let first = told.lines().next().unwrap();
    assert!(told.lines().count() == 4 && told.lines().all(|name| name == first), "{told}");
}

#[test]
fn no_variable_of_an_outer_launcher_reaches_a_pe() {
    let args = Args { npes: Some(2), command: vec!["true".into()], ..Args::default() };
    let command = prepare(&args, &mut Share::whole(args.npes()).unwrap(), 1).unwrap();
    for name in ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"] {
        assert!(command.get_envs().any(|(known, value)| known == name && value.is_none()), "{name}");
    }
}

#[test]
fn labels_begin_every_line() {
    let lines = Kept::default();
    copy(Some(3), Some(&b"one\n\xff two"[..]), || lines.clone(), Passing::new().each());
    assert_eq!(*lines.0.lock().unwrap(), b"[3] one\n[3] \xff two\n");
}

/// What a PE prints would else cut a report that came at once.
#[test]
fn lines_that_come_at_once_go_on_at_once() {
    let (lines, writes) = (Kept::default(), std::cell::Cell::new(0));
    let to = || {
        writes.set(writes.get() + 1);
        lines.clone()
    };
    copy(Some(3), Some(&b"a report\n  of two lines\n"[..]), to, Passing::new().each());
    assert_eq!((lines.0.lock().unwrap().as_slice(), writes.get()), (&b"[3] a report\n[3]   of two lines\n"[..], 1));
    let many = "line\n".repeat(100_000);
    copy(Some(3), Some(many.as_bytes()), to, Passing::new().each());
    assert!((2..100).contains(&writes.get()), "{}", writes.get());
}

#[test]
fn the_driver_is_told_what_pes_need_unless_the_user_says_otherwise() {
    let args = Args { npes: Some(1), command: vec!["true".into()], ..Args::default() };
    let command = prepare(&args, &mut Share::whole(args.npes()).unwrap(), 0).unwrap();
    for (variable, value) in [("CUDA_DEVICE_MAX_CONNECTIONS", "32"), ("CUDA_MODULE_LOADING", "EAGER")] {
        let set = command.get_envs().find(|(name, _)| *name == variable).and_then(|(_, value)| value);
        let kept = std::env::var_os(variable).is_some();
        assert_eq!(set, (!kept).then_some(value.as_ref()));
    }
    for (npes, mps, queues) in [(8, false, "32"), (1, true, "32"), (8, true, "12"), (60, true, "2")] {
        assert_eq!(driver_variables(npes, mps)[0], ("CUDA_DEVICE_MAX_CONNECTIONS", queues.to_owned()));
    }
}

/// This binary again, as the launcher of a job whose PEs each write their process number and then sleep.
fn launcher(test: &str) -> Option<(Child, Vec<Pid>)> {
    const ROLE: &str = "CONGRUENT_TEST_LAUNCHER";
    if std::env::var_os(ROLE).is_some() {
        let command = ["sh", "-c", "echo PE $$; exec sleep 60"].map(OsString::from).to_vec();
        let outcome = run(&Args { npes: Some(2), label: true, command, ..Args::default() }).unwrap();
        println!("CODE {outcome:?}");
        return None;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.as_mut().unwrap()).lines().map(Result::unwrap);
    let mut number = || said.find_map(|line| line.split_once("] PE ")?.1.parse().ok());
    let pes = [number().unwrap(), number().unwrap()].map(|pid| Pid::from_raw(pid).unwrap());
    Some((child, pes.to_vec()))
}

/// Whether none of the processes is there any more, after a while.
fn all_gone(pes: &[Pid]) -> bool {
    let until = Instant::now() + Duration::from_secs(10);
    let there = |pid: &Pid| {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        // An orphan may wait as a zombie until the system's first process cares.
        state.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
    };
    while pes.iter().any(there) {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

#[test]
fn no_pe_outlives_a_killed_launcher() {
    let Some((mut child, pes)) = launcher("run::tests::no_pe_outlives_a_killed_launcher") else { return };
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(all_gone(&pes));
}

#[test]
fn signals_reach_the_pes() {
    let Some((child, pes)) = launcher("run::tests::signals_reach_the_pes") else { return };
    let begun = Instant::now();
    rustix::process::kill_process(pid(&child).unwrap(), Signal::TERM).unwrap();
    let Finished { status, stdout, .. } = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&stdout);
    assert!(status.success() && said.contains("CODE") && said.contains("143"), "{said}");
    assert!(all_gone(&pes) && begun.elapsed() < FAREWELL);
}
