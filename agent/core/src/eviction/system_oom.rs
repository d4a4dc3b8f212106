//! Kernel log messages about out-of-memory kills.
//!
//! In: lines of /dev/kmsg. Out: [`Kill`]s of the whole machine, which the Node reports as events, and the
//! containers in which a process was killed. Invariants: total on any input; a kill by a cgroup's own limit
//! is not an event of the Node: the runtime reports it as `OOMKilled`, unless the runtime was too slow to
//! notice ([`correct`]). Linux: mm/oom_kill.c, Documentation/ABI/testing/dev-kmsg. Upstream: pkg/kubelet/oom
//! and cadvisor's utils/oomparser. Both treat a kill as one of the machine unless its line names a cgroup
//! whose limit was hit.

use agent_types::ids::ContainerId;
use agent_types::runtime::observed::{ContainerObserved, ContainerState};

/// Reason of the Node's event.
pub const REASON: &str = "SystemOOM";
/// The runtime's reason for a container that failed.
const ERROR: &str = "Error";
/// The runtime's reason for a container that the kernel killed because memory was short.
const OOM_KILLED: &str = "OOMKilled";
/// Exit code of a process that SIGKILL ended.
const KILLED: i32 = 128 + 9;
/// Digits of the shortest id that a runtime gives to a container.
const ID_DIGITS_MIN: usize = 32;

/// Contents of one record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finding {
    /// The whole machine was out of memory.
    pub machine: Option<Kill>,
    /// The kernel killed a process in this container.
    pub container: Option<ContainerId>,
}

/// Corrects the reason of a container that SIGKILL ended and in which the kernel killed a process for memory:
/// the kernel killed the container. A runtime gets both facts on different ways, and may miss the second one
/// for a container that dies in its first moments.
pub fn correct(container: &mut ContainerObserved) {
    if container.state == ContainerState::Exited && container.exit_code == KILLED && container.reason == ERROR
    {
        container.reason = OOM_KILLED.to_owned();
    }
}

/// A process that was killed for want of memory of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// Name of the process.
    pub process: String,
    /// Process id.
    pub pid: u32,
}

impl Kill {
    /// The event's message.
    #[must_use]
    pub fn message(&self) -> String {
        format!("System OOM encountered, victim process: {}, pid: {}", self.process, self.pid)
    }
}

/// Reads the log line by line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OomParser {
    /// A kill has begun, and the line with its victim has not arrived.
    begun: bool,
}

impl OomParser {
    /// The next record of /dev/kmsg: `<priority>,<sequence>,<µs>,<flags>;<text>`, then lines that begin with a blank.
    pub fn record(&mut self, record: &str) -> Finding {
        let Some((head, rest)) = record.split_once(';') else { return Finding::default() };
        // 8 is the first priority of another facility than the kernel's: a program wrote it, maybe a pod's words.
        let priority = head.split(',').next().and_then(|word| word.parse::<u32>().ok());
        if priority.is_none_or(|priority| priority >= 8) {
            return Finding::default();
        }
        let text = rest.lines().next().unwrap_or("");
        let container = text.contains("oom-kill:constraint=").then(|| container(text)).flatten();
        Finding { machine: self.line(text), container }
    }

    fn line(&mut self, text: &str) -> Option<Kill> {
        if text.contains("invoked oom-killer:") {
            self.begun = true;
            return None;
        }
        if !self.begun {
            return None;
        }
        if text.contains("oom-kill:constraint=") && text.contains("oom_memcg=") {
            // A cgroup's limit; the whole machine is a cgroup, too.
            self.begun = false;
            return value(text, "oom_memcg=").filter(|group| *group == "/").and_then(|_| of_constraint(text));
        }
        let kill = killed(text)?;
        self.begun = false;
        Some(kill)
    }
}

/// The container whose cgroup, or a group in it, contained the task: `…/cri-containerd-<id>.scope/…` or
/// `…/<id>`.
fn container(text: &str) -> Option<ContainerId> {
    let is_id = |name: &&str| name.len() >= ID_DIGITS_MIN && name.bytes().all(|b| b.is_ascii_hexdigit());
    let parts = value(text, "task_memcg=")?.split('/');
    let names = parts.map(|part| part.strip_suffix(".scope").unwrap_or(part));
    names.filter_map(|name| name.rsplit('-').next()).rfind(is_id).map(ContainerId::from)
}

fn value<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(key)?;
    rest.split(',').next()
}

fn of_constraint(text: &str) -> Option<Kill> {
    let process = value(text, ",task=")?.to_owned();
    Some(Kill { process, pid: value(text, ",pid=")?.parse().ok()? })
}

/// `Killed process 123 (name) total-vm:…`; a name may have parentheses itself.
fn killed(text: &str) -> Option<Kill> {
    let (_, rest) = text.split_once("Killed process ")?;
    let (pid, rest) = rest.split_once(' ')?;
    let pid = pid.trim_end_matches(',').parse().ok()?;
    let (name, _) = rest.strip_prefix('(')?.rsplit_once(')')?;
    Some(Kill { process: name.to_owned(), pid })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(lines: &[&str]) -> Vec<(String, u32)> {
        let mut parser = OomParser::default();
        let mut record = |line: &&str| parser.record(&format!("3,1,2,-;{line}\n SUBSYSTEM=x\n"));
        lines.iter().filter_map(|line| record(line).machine).map(|kill| (kill.process, kill.pid)).collect()
    }

    const BEGINS: &str =
        "hog invoked oom-killer: gfp_mask=0x140dca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=999";

    #[test]
    fn a_record_of_a_program_is_no_kill() {
        let words = format!(
            "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task_memcg=/x/{},task=a",
            "a".repeat(64)
        );
        let mut parser = OomParser::default();
        assert_eq!(parser.record(&format!("14,1,2,-;orlop-agent: default/a c: {words}")), Finding::default());
        assert_eq!(parser, OomParser::default());
    }

    #[test]
    fn kills_of_the_machine_are_told_and_those_of_cgroups_are_not() {
        let of_machine = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=a.scope,mems_allowed=0,\
             global_oom,task_memcg=/kubepods.slice/a.scope,task=hog,pid=812,uid=0";
        let killed = "Out of memory: Killed process 812 (hog) total-vm:9kB, anon-rss:8kB, oom_score_adj:1000";
        assert_eq!(read(&[BEGINS, "Call Trace:", of_machine, killed]), [("hog".to_owned(), 812)]);
        let of_cgroup = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,mems_allowed=0,\
             oom_memcg=/kubepods.slice/a,task_memcg=/kubepods.slice/a/b,task=hog,pid=9,uid=0";
        let in_cgroup = "Memory cgroup out of memory: Killed process 9 (hog) total-vm:9kB";
        assert!(read(&[BEGINS, of_cgroup, in_cgroup]).is_empty());
        let of_root = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,\
             oom_memcg=/,task_memcg=/a,task=(sd-pam),pid=9,uid=0";
        assert_eq!(read(&[BEGINS, of_root, in_cgroup]), [("(sd-pam)".to_owned(), 9)]);
        assert!(read(&[killed]).is_empty(), "the rest of a kill that was told before");
        let odd = "Out of memory: Killed process 7 (a (b) c) total-vm:1kB";
        assert_eq!(read(&[BEGINS, odd, odd]), [("a (b) c".to_owned(), 7)], "once");
        let kill = Kill { process: "hog".to_owned(), pid: 812 };
        assert_eq!(kill.message(), "System OOM encountered, victim process: hog, pid: 812");
    }

    #[test]
    fn the_container_of_who_was_killed_is_known() {
        let id = "d2904ee15577f84029c22687ee02f49b2efd74253e2789700011dea245d955f8";
        let of = |group: &str| {
            let line = format!(
                "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,mems_allowed=0,oom_memcg=/kubepods.slice/p,\
                 task_memcg={group},task=dd,pid=463,uid=0"
            );
            OomParser::default().record(&format!("6,1,2,-;{line}\n")).container
        };
        let pod = "/kubepods.slice/kubepods-pod03b7fd32_806e_476f_8c47_8dba627509a9.slice";
        for group in [
            format!("{pod}/cri-containerd-{id}.scope"),
            format!("{pod}/cri-containerd-{id}.scope/container"),
            format!("/kubepods/burstable/pod03b7fd32-806e-476f-8c47-8dba627509a9/{id}"),
        ] {
            assert_eq!(of(&group), Some(ContainerId::from(id)), "{group}");
        }
        for group in
            ["/", "/system.slice/sshd.service", pod, "/kubepods/pod03b7fd32-806e-476f-8c47-8dba627509a9"]
        {
            assert_eq!(of(group), None, "{group}");
        }
    }

    #[test]
    fn a_runtime_that_did_not_see_it_is_corrected() {
        let ended = |exit_code, reason: &str| {
            let mut container = ContainerObserved::created("c", "s", "c", 0, agent_types::time::Wall(0));
            (container.state, container.exit_code) = (ContainerState::Exited, exit_code);
            reason.clone_into(&mut container.reason);
            correct(&mut container);
            container.reason
        };
        assert_eq!(ended(137, "Error"), "OOMKilled");
        assert_eq!(ended(137, "OOMKilled"), "OOMKilled");
        assert_eq!(ended(137, "StartError"), "StartError");
        assert_eq!(ended(1, "Error"), "Error", "one of its processes was killed, and it ended by itself");
        let mut running = ContainerObserved::created("c", "s", "c", 0, agent_types::time::Wall(0));
        correct(&mut running);
        assert_eq!(running.reason, "");
    }

    proptest! {
        #[test]
        fn any_text_is_taken(
            lines in proptest::collection::vec("(invoked oom-killer:|oom-kill:constraint=|oom_memcg=|task_memcg=/|Killed process |[0-9]{1,12}|\\(|\\)|;|,|pid=|.{0,9}){0,8}", 0..9),
        ) {
            let mut parser = OomParser::default();
            for line in &lines {
                let _ = parser.record(line);
            }
        }
    }
}
