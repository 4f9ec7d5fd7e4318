//! The litmus tests on virtual GPUs with weak memory: what the model forbids never happens, and what it allows does, but for load
//! buffering, which an execution step by step does not have.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking, in its helpers too")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, thread};

use congruent_verify::litmus::{Placed, Rule, Test, Verdict, parse};
use congruent_virtual_gpu::{
    Access, Backing, Launch, Machine, Member, Multicast, Program, Promises, Schedule, Segment, Settings, Space, Window,
};

/// Where locations are, one a page; where their aliases and multicast addresses are follows from their number too.
const AT: u64 = 0x7000_0000;
const PAGE: u64 = 0x1000;
/// Where threads meet to start, and where they leave what they have loaded.
const GO: &str = "go.meet";
const SEEN: &str = "seen.all";
/// Where there they count themselves when they end.
const ENDED: u64 = 2048;

/// A test as kernels, one for each device.
struct Kernels {
    text: String,
    devices: BTreeMap<u32, Vec<(u32, u32)>>,
    /// All names, in the order of their pages.
    names: Vec<String>,
    registers: Vec<String>,
}

fn address(names: &mut Vec<String>, name: &str) -> u64 {
    let index = names.iter().position(|own| own == name).unwrap_or_else(|| {
        names.push(name.to_owned());
        names.len() - 1
    });
    AT + index as u64 * PAGE
}

/// What is before an address, its name and its offset, and what is after it.
fn bracketed(line: &str) -> Option<(&str, &str, &str, &str)> {
    let (head, rest) = line.split_once('[')?;
    let (inside, tail) = rest.split_once(']')?;
    let (name, offset) = inside.split_once('+').unwrap_or((inside, "0"));
    Some((head, name, offset, tail))
}

/// Repeats a load until what is assumed is so. An update is not repeated: the thread ends early, and this is no execution.
fn wait(lines: &[String], assumed: &str, number: usize) -> String {
    let [register, is, value] = assumed.split(' ').collect::<Vec<_>>()[..] else { panic!("{assumed}") };
    let wrong = match is {
        "==" => "ne",
        ">=" => "lt",
        _ => panic!("{assumed}"),
    };
    let fills = |line: &String| line.contains(&format!(" {register},"));
    let from = lines.iter().position(fills).expect("a load");
    let bits = if lines[from].split(' ').next().is_some_and(|name| name.ends_with("32")) { 32 } else { 64 };
    let target = if lines[from].starts_with("ld.") { format!("again{from}_{number}") } else { format!("past{number}") };
    format!("setp.{wrong}.u{bits} %p, {register}, {value}; @%p bra {target};\n")
}

/// Memory by its own name.
fn location<'t>(test: &'t Test, name: &'t str) -> &'t str {
    test.aliases().find(|(alias, _)| *alias == name).map_or(name, |(_, of)| of)
}

impl Kernels {
    /// None of tests with threads or instructions that this machine has not, or whose warps have to stay together.
    fn of(test: &Test) -> Option<Self> {
        let threads: Vec<Placed<'_>> = test.threads().collect();
        let is_strange = |line: &String| ["bar.warp", "cluster", "cp.async"].iter().any(|part| line.contains(part));
        let is_outside = |thread: &Placed<'_>| thread.gpu.is_none() || thread.place[0] > 0;
        if threads.iter().any(|thread| is_outside(thread) || thread.lines.iter().any(is_strange)) {
            return None;
        }
        let (mut devices, mut names, registers) = (BTreeMap::new(), Vec::new(), Vec::new());
        let (go, seen) = (address(&mut names, GO), address(&mut names, SEEN));
        let mut kernels = Self { text: String::new(), devices: BTreeMap::new(), names, registers };
        let (mut bodies, mut declared) = (BTreeMap::<u32, String>::new(), String::new());
        for (number, thread) in threads.iter().enumerate() {
            let (device, cta) = (thread.gpu.unwrap_or(0), thread.place[1]);
            let placed: &mut Vec<(u32, u32)> = devices.entry(device).or_default();
            // Each thread is a warp's first lane.
            let lane = 32 * placed.iter().filter(|(other, _)| *other == cta).count() as u32;
            placed.push((cta, lane));
            let code = kernels.thread(thread, number, &mut declared);
            bodies.entry(device).or_default().push_str(&format!(
                "setp.ne.u32 %p, %cta, {cta}; @%p bra past{number}; setp.ne.u32 %p, %tid, {lane}; @%p bra past{number};\n\
                 red.relaxed.sys.global.add.u32 [%go], 1;\n\
                 meet{number}: ld.relaxed.sys.global.u32 %n, [%go]; setp.lt.u32 %p, %n, {}; @%p bra meet{number};\n\
                 {code}past{number}:\n",
                threads.len(),
            ));
        }
        let kernel = |(device, body): (u32, String)| {
            format!(
                ".visible .entry k{device}(.param .u64 at) {{\n\
                 .reg .pred %p; .reg .b32 %n, %cta, %tid; .reg .b64 %go, %a, %seen;\n{declared}\
                 mov.u32 %cta, %ctaid.x; mov.u32 %tid, %tid.x; mov.u64 %go, {go}; mov.u64 %seen, {seen};\n{body}ret;\n}}\n"
            )
        };
        let body: String = bodies.into_iter().map(kernel).collect();
        Some(Self { text: format!(".version 8.8\n.target sm_90\n.address_size 64\n{body}"), devices, ..kernels })
    }

    /// A thread's code; what it has loaded it leaves behind.
    fn thread(&mut self, thread: &Placed<'_>, number: usize, declared: &mut String) -> String {
        let (mut code, mut own) = (String::new(), Vec::new());
        for (index, line) in thread.lines.iter().enumerate() {
            if let Some(assumed) = line.strip_prefix("assume ") {
                code += &wait(thread.lines, assumed, number);
                continue;
            }
            let bits = if line.split(' ').next().is_some_and(|name| name.ends_with("32")) { 32 } else { 64 };
            code += &format!("again{index}_{number}:\n");
            let Some((head, name, offset, tail)) = bracketed(line) else {
                code += &format!("{};\n", line.replace("bar.sync", "barrier.sync"));
                continue;
            };
            code += &format!("mov.u64 %a, {};\n", address(&mut self.names, name));
            let mut tail = tail.to_owned();
            if let Some((_, inside)) = tail.clone().split_once('{') {
                // Numbers in vectors are in registers.
                for (element, value) in inside.trim_end_matches('}').split(',').enumerate() {
                    *declared += &format!(".reg .b{bits} %w{index}_{number}_{element};\n");
                    code += &format!("mov.b{bits} %w{index}_{number}_{element}, {};\n", value.trim());
                    tail = tail.replacen(value, &format!("%w{index}_{number}_{element}"), 1);
                }
            }
            let results = head.split_once(' ').map_or("", |(_, results)| results);
            for register in results.split(|c: char| !c.is_ascii_alphanumeric()).filter(|name| name.starts_with('r')) {
                *declared += &format!(".reg .b{bits} {register};\n");
                own.push((register.to_owned(), bits));
            }
            code += &format!("{head}[%a+{offset}]{tail};\n");
        }
        for (register, bits) in own {
            code += &format!("st.relaxed.sys.global.u{bits} [%seen+{}], {register};\n", 8 * self.registers.len());
            self.registers.push(register);
        }
        code + &format!("red.relaxed.sys.global.add.u32 [%seen+{ENDED}], 1;\n")
    }

    /// Whether an execution by chance has the outcome; none where the threads have not all come to their ends.
    fn run(&self, test: &Test, program: &Arc<Program>, schedule: Schedule, seed: u64) -> Option<bool> {
        let (ll128_128b_ordered, v4_16b_atomic) = test.promises();
        let settings = Settings {
            devices: self.devices.keys().max().map_or(1, |most| most + 1),
            schedule,
            seed,
            weak: Some(Promises { v4_16b_atomic, ll128_128b_ordered }),
            patience: Duration::from_millis(20),
            budget: 1 << 16,
            ..Settings::default()
        };
        let machine = Machine::new(settings).unwrap();
        let members = test.multicasts().flat_map(|(_, members)| members.iter().map(String::as_str));
        let all = self.names.iter().map(String::as_str).chain(members).map(|name| location(test, name));
        let segments: BTreeMap<&str, Arc<Segment>> = all.map(|name| (name, Segment::zeroed(PAGE))).collect();
        let memory = |name: &str| segments[location(test, name)].clone();
        let backing = |name: &String| match test.multicasts().find(|(own, _)| own == name) {
            Some((_, members)) => {
                let object = Multicast::new(members.len(), ());
                for (device, member) in (0..).zip(members) {
                    object.bind(Member { process: 0, device, at: 0, bytes: PAGE, memory: memory(member), from: 0 });
                }
                Backing::Multicast(object)
            }
            None => Backing::Memory(memory(name), 0),
        };
        let backings: Vec<Backing> = self.names.iter().map(backing).collect();
        let done: Vec<bool> = thread::scope(|scope| {
            let launched: Vec<_> = self
                .devices
                .iter()
                .map(|(&device, threads)| {
                    let space = Space::new(device);
                    for (index, backing) in backings.iter().enumerate() {
                        let at = AT + index as u64 * PAGE;
                        space.map(Window { at, bytes: PAGE, backing: backing.clone(), access: Access::ReadWrite });
                    }
                    let launch = Launch {
                        program: program.clone(),
                        globals: Arc::new([]),
                        kernel: format!("k{device}"),
                        space,
                        pe: None,
                        blocks: [threads.iter().map(|(cta, _)| cta + 1).max().unwrap_or(1), 1, 1],
                        threads: [threads.iter().map(|(_, lane)| lane + 1).max().unwrap_or(1), 1, 1],
                        shared: 0,
                        registers: 32,
                        params: AT.to_le_bytes().to_vec(),
                    };
                    let machine = machine.clone();
                    scope.spawn(move || machine.launch(launch).is_ok())
                })
                .collect();
            launched.into_iter().map(|launched| launched.join().unwrap()).collect()
        });
        let read = |segment: &Segment, at: u64| {
            let mut bytes = [0; 8];
            segment.read(at, &mut bytes);
            u64::from_le_bytes(bytes)
        };
        let seen = memory(SEEN);
        if done.contains(&false) || read(&seen, ENDED) != test.threads().count() as u64 {
            return None;
        }
        let value = |term: &str| match bracketed(term) {
            Some((_, name, offset, _)) => read(&memory(name), offset.parse().unwrap()),
            None => read(&seen, 8 * self.registers.iter().position(|own| own == term).unwrap() as u64),
        };
        let holds = |text: &str| {
            let words: Vec<&str> = text.split_whitespace().collect();
            let right =
                words[2].strip_prefix("0x").map_or_else(|| words[2].parse(), |hex| u64::from_str_radix(hex, 16));
            let (left, right) = (value(words[0]), right.unwrap());
            match words[1] {
                "==" => left == right,
                "!=" => left != right,
                ">=" => left >= right,
                other => panic!("{other}"),
            }
        };
        Some(test.condition().split("||").any(|all| all.split("&&").all(holds)))
    }
}

#[test]
fn weak_memory_does_what_the_model_allows() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../verify/tests/litmus");
    let (mut wrong, mut ran) = (Vec::new(), 0);
    for file in ["patterns", "classic", "protocols"] {
        let tests = parse(&fs::read_to_string(folder.join(format!("{file}.litmus"))).unwrap()).unwrap();
        for test in &tests {
            let (Some(kernels), outcome) = (Kernels::of(test), test.check()) else { continue };
            if outcome.verdict == Verdict::Void || outcome.rules.contains(&Rule::LoadBuffering) {
                continue;
            }
            let program = Program::new(&kernels.text).unwrap_or_else(|error| panic!("{error}\n{}", kernels.text));
            let allowed = outcome.verdict == Verdict::Allowed;
            let schedule = |seed| if seed % 2 == 0 { Schedule::Random } else { Schedule::Priorities };
            let happens = |seed| kernels.run(test, &program, schedule(seed), seed) == Some(true);
            if (0..if allowed { 1000 } else { 60 }).any(happens) != allowed {
                wrong.push(format!("{}: {}", test.name, outcome.verdict));
            }
            ran += 1;
        }
    }
    assert!(wrong.is_empty() && ran > 100, "of {ran}:\n{}", wrong.join("\n"));
}
