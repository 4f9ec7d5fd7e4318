//! Two hosts that are network namespaces of this one, joined by a pair of virtual Ethernet devices. They share processes, files and
//! the kernel, and nothing of the network.

use std::io;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Until a device that was set up is up.
const SOON: Duration = Duration::from_secs(10);

/// Two network namespaces that are joined, while this lives; one pair in a process at a time.
pub struct Hosts {
    number: u32,
}

impl Hosts {
    /// Their addresses, each on its device.
    pub const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

    /// Makes them.
    ///
    /// # Errors
    /// Where this user or this system makes no network namespaces.
    pub fn new() -> io::Result<Self> {
        // Gone with its parts, whatever comes of the rest.
        let hosts = Self { number: std::process::id() };
        let [at_a, at_b] = Self::ADDRESSES;
        // Those of a process that was killed, whose number this one has now.
        hosts.remove();
        let [a, b] = [0, 1].map(|host| hosts.name(host));
        for command in [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("-n {a} link add v0 type veth peer name v1 netns {b}"),
            format!("-n {a} addr add {at_a}/24 dev v0"),
            format!("-n {b} addr add {at_b}/24 dev v1"),
            format!("-n {a} link set v0 up"),
            format!("-n {b} link set v1 up"),
            format!("-n {a} link set lo up"),
            format!("-n {b} link set lo up"),
        ] {
            ip(&command)?;
        }
        let began = Instant::now();
        for (host, device) in [(0, "v0"), (1, "v1")] {
            while !ip(&format!("-n {} -o link show {device}", hosts.name(host)))?.contains("state UP") {
                if began.elapsed() > SOON {
                    return Err(io::Error::other(format!("{device} does not come up")));
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(hosts)
    }

    /// The name of one's namespace.
    pub fn name(&self, host: usize) -> String {
        format!("congruent-{}-{host}", self.number)
    }

    /// Bytes that have left the first host.
    ///
    /// # Errors
    /// Where its device is gone.
    pub fn bytes(&self) -> io::Result<u64> {
        let said = ip(&format!("netns exec {} cat /sys/class/net/v0/statistics/tx_bytes", self.name(0)))?;
        said.trim().parse().map_err(|_| io::Error::other(said))
    }

    /// The processes that are on a host.
    ///
    /// # Errors
    /// Where it is gone.
    pub fn processes(&self, host: usize) -> io::Result<Vec<i32>> {
        let said = ip(&format!("netns pids {}", self.name(host)))?;
        Ok(said.split_whitespace().filter_map(|number| number.parse().ok()).collect())
    }

    /// Parts the hosts, or joins them again.
    ///
    /// # Errors
    /// Where the device is gone.
    pub fn join(&self, joined: bool) -> io::Result<()> {
        ip(&format!("-n {} link set v1 {}", self.name(1), if joined { "up" } else { "down" })).map(drop)
    }
}

impl Hosts {
    fn remove(&self) {
        for host in [0, 1] {
            let _gone = ip(&format!("netns del {}", self.name(host)));
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Runs `ip`, and gives what it says.
fn ip(arguments: &str) -> io::Result<String> {
    let said = Command::new("ip").args(arguments.split(' ')).output()?;
    if said.status.success() {
        return Ok(String::from_utf8_lossy(&said.stdout).into_owned());
    }
    Err(io::Error::other(format!("ip {arguments}: {}", String::from_utf8_lossy(&said.stderr))))
}
