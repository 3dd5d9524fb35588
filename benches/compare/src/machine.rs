//! The machine that figures belong to.

use std::fs;

use serde_json::{Value, json};

use crate::cpu;

/// What stays as it is while rows run.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) model: String,
    pub(crate) kernel: String,
    pub(crate) congestion_control: String,
    /// The network namespace holds nothing but loopback.
    pub(crate) own_network: bool,
    virtual_machine: bool,
    memory: String,
    hugepages: String,
    load_at_start: String,
}

impl Machine {
    pub(crate) fn describe() -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let meminfo = read("/proc/meminfo");
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name));
            line.and_then(|line| line.split_once(':'))
                .map_or_else(String::new, |(_, value)| value.trim().to_owned())
        };
        // Two lines of heading, then one for each interface.
        let interfaces = read("/proc/net/dev");
        Self {
            cores: cpu::allowed().map_or(0, |cores| cores.len()),
            model: field(&cpuinfo, "model name"),
            kernel: read("/proc/sys/kernel/osrelease"),
            congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control"),
            own_network: interfaces.lines().skip(2).all(|line| line.trim_start().starts_with("lo:")),
            virtual_machine: field(&cpuinfo, "flags").split(' ').any(|flag| flag == "hypervisor"),
            memory: field(&meminfo, "MemTotal"),
            hugepages: format!(
                "{} of {}, {} free",
                field(&meminfo, "HugePages_Total"),
                field(&meminfo, "Hugepagesize"),
                field(&meminfo, "HugePages_Free")
            ),
            load_at_start: load(),
        }
    }

    /// For the table's heading.
    pub(crate) fn line(&self) -> String {
        format!(
            "{} cores, {}{}, Linux {}, tcp {}, load {}{}",
            self.cores,
            self.model,
            if self.virtual_machine { " (virtual machine)" } else { "" },
            self.kernel,
            self.congestion_control,
            self.load_at_start,
            if self.own_network { "" } else { ", in the machine's own network" }
        )
    }

    /// For the JSON, at the end of the run.
    pub(crate) fn json(&self) -> Value {
        json!({
            "cores": self.cores,
            "model": self.model,
            "virtual_machine": self.virtual_machine,
            "memory": self.memory,
            "hugepages": self.hugepages,
            "kernel": self.kernel,
            "tcp_congestion_control": self.congestion_control,
            "own_network_namespace": self.own_network,
            "load_at_start": self.load_at_start,
            "load_at_end": load(),
        })
    }
}

fn load() -> String {
    read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}
