//! What a guest of the lab (`ops/lab`) offers to tests: its network, wires that lose packets or are cut, what the kernel
//! counts of RDMA, and where memory lies. Everything here changes or reads the whole machine, so outside a guest it panics.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::Value as Json;

use crate::process::run;

/// Set in guests only; the name of their network.
const NETWORK: &str = "RAILHEAD_LAB";
/// For commands that only talk to the kernel; an emulated processor is slow.
const COMMAND_LIMIT: Duration = Duration::from_secs(20);

/// Whether this is a guest.
pub(crate) fn is_one() -> bool {
    std::env::var_os(NETWORK).is_some()
}

/// Asserts that this is a guest with that network.
///
/// # Panics
/// If it is not.
pub fn needs(network: &str) {
    let found = std::env::var(NETWORK).unwrap_or_default();
    assert_eq!(found, network, "this test needs a guest: ops/lab/run-tests --net {network}");
}

/// Bytes that an interface has sent since it was made.
///
/// # Panics
/// If there is no such interface.
#[must_use]
pub fn sent_bytes(interface: &str) -> u64 {
    number(&format!("/sys/class/net/{interface}/statistics/tx_bytes"))
}

/// One of the kernel's counters of an RDMA device, such as `sent_pkts` or `retry_exceeded_err`.
///
/// # Panics
/// If there is no such device or counter.
#[must_use]
pub fn rdma_counter(device: &str, counter: &str) -> u64 {
    number(&format!("/sys/class/infiniband/{device}/ports/1/hw_counters/{counter}"))
}

/// The NUMA node of the interface behind a soft RDMA device. Such a device has no `device` link of its own.
///
/// # Panics
/// If there is no such device.
#[must_use]
pub fn rdma_numa_node(device: &str) -> usize {
    let parent = text(&format!("/sys/class/infiniband/{device}/parent"));
    // A virtio interface's device is the virtio one; the PCI function with the node is above it.
    let node = number(&format!("/sys/class/net/{parent}/device/../numa_node"));
    usize::try_from(node).expect("a node's number")
}

/// What the kernel holds of one RDMA device, by kind (`pd`, `cq`, `qp`, `mr`, `ctx` ..), as `rdma resource show` says it.
pub type RdmaResources = BTreeMap<String, u64>;

/// What the kernel holds for each RDMA device, by the device's name.
///
/// # Panics
/// If the command fails or says something else.
#[must_use]
pub fn rdma_resources() -> BTreeMap<String, RdmaResources> {
    let out = command(&["rdma", "-j", "resource", "show"]);
    let json: Json = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{out}: {error}"));
    let devices = json.as_array().unwrap_or_else(|| panic!("no devices: {out}"));
    let count = |(kind, value): (&String, &Json)| Some((kind.clone(), value.as_u64()?));
    devices
        .iter()
        .filter_map(Json::as_object)
        .map(|device| {
            let name = device["ifname"].as_str().unwrap_or_default().to_owned();
            (name, device.iter().filter(|(kind, _)| *kind != "ifindex").filter_map(count).collect())
        })
        .collect()
}

/// An interface whose packets suffer, until this is dropped.
#[derive(Debug)]
pub struct Impaired {
    interface: String,
}

impl Impaired {
    /// `rules` are those of `tc-netem`, such as `loss 2%`. They act on what the interface sends.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[must_use]
    pub fn new(interface: &str, rules: &str) -> Self {
        let words = ["tc", "qdisc", "add", "dev", interface, "root", "netem"];
        command(&words.into_iter().chain(rules.split(' ')).collect::<Vec<_>>());
        Self { interface: interface.to_owned() }
    }

    /// Packets that the rules have dropped.
    ///
    /// # Panics
    /// If the kernel does not say.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        let out = command(&["tc", "-s", "-j", "qdisc", "show", "dev", &self.interface]);
        let json: Json = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{out}: {error}"));
        json[0]["drops"].as_u64().unwrap_or_else(|| panic!("no drops: {out}"))
    }
}

impl Drop for Impaired {
    fn drop(&mut self) {
        // A second panic would hide the first.
        if !std::thread::panicking() {
            command(&["tc", "qdisc", "del", "dev", &self.interface, "root"]);
        }
    }
}

/// Sets an interface up or down.
///
/// # Panics
/// If the kernel refuses.
pub fn set_link(interface: &str, up: bool) {
    command(&["ip", "link", "set", interface, if up { "up" } else { "down" }]);
}

/// Pages of a process by NUMA node, of the mappings that `chosen` picks by their line in `numa_maps`.
///
/// # Panics
/// If there is no such process.
#[must_use]
pub fn pages_by_node(pid: u32, chosen: impl Fn(&str) -> bool) -> BTreeMap<usize, u64> {
    let all = text(&format!("/proc/{pid}/numa_maps"));
    let mut pages = BTreeMap::new();
    for word in all.lines().filter(|line| chosen(line)).flat_map(|line| line.split(' ')) {
        let count = word.strip_prefix('N').and_then(|rest| rest.split_once('='));
        if let Some((Ok(node), Ok(count))) = count.map(|(n, c)| (n.parse::<usize>(), c.parse::<u64>())) {
            *pages.entry(node).or_default() += count;
        }
    }
    pages
}

/// The cores of a NUMA node.
///
/// # Panics
/// If there is no such node.
#[must_use]
pub fn cores_of_node(node: usize) -> Vec<usize> {
    let list = text(&format!("/sys/devices/system/node/node{node}/cpulist"));
    let parse = |word: &str| word.parse::<usize>().unwrap_or_else(|error| panic!("{list}: {error}"));
    list.split(',')
        .flat_map(|range| match range.split_once('-') {
            Some((first, last)) => parse(first)..=parse(last),
            None => parse(range)..=parse(range),
        })
        .collect()
}

/// Runs a command that must succeed; its standard output.
///
/// # Panics
/// If it does not.
pub fn command(words: &[&str]) -> String {
    let ended = run(Command::new(words[0]).args(&words[1..]), COMMAND_LIMIT);
    assert_eq!(ended.code, Some(0), "{words:?}: {}{}", ended.out, ended.err);
    ended.out
}

fn text(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.trim_end().to_owned()
}

fn number(path: &str) -> u64 {
    text(path).parse().unwrap_or_else(|error| panic!("{path}: {error}"))
}
